"""Rule: the factors (loop indices) of one op, and which of its dims they walk.

A rule is written as one line, `b i k, k j -> b i j` (see `planner.graph.notation`). Left of the arrow
stand the operands, right of it the results; each dim is one factor, or several in parentheses, major
first: `b (h e) -> b h e`.

- A factor of the operands that no result has is *reduced*: splitting it leaves every device with a
  partial sum (or max), which a collective must finish.
- A factor only a result has is *made* (broadcast, iota): splitting it is free.
- A factor marked `!` must stay whole.
- A factor marked `.` is one whose partial results the op itself finishes.
- A factor that stands behind another one inside parentheses is whole too, because a tile of the
  merged dim would not be contiguous; `Rule.splittable` leaves it out.
- A factor marked `~1+2` in an operand needs a halo where it is split: a device reads one row before its
  own part of the dim and two rows after it, which its neighbours send.
- `_` is a dim of extent one.
"""

import dataclasses
import functools
from collections.abc import Mapping

Dim = tuple[str, ...]  # factors of one dim, major first; () is a dim of extent one
Dims = tuple[Dim, ...]


@dataclasses.dataclass(frozen=True)
class Halo:
    """What a device reads of its neighbours' parts of a dim of an operand: rows before its own, and after."""

    operand: int
    dim: int
    before: int
    after: int


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which factor walks which dim of an op's operands and results.

    operands, results: per value, per dim, its factors, major first. sizes: extent of every factor.
    whole: factors that may not be split. halos: of the dims that have one, in order. finished: factors that
    leave no partial results, though no result has them. apart: pairs of which only one may be split. filling:
    factors that are split only where no axis of the mesh is idle. These two are no mathematics: they leave
    out what XLA's partitioner gets wrong.
    A literal or unused operand has `dims` of () .
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    halos: tuple[Halo, ...] = ()
    finished: frozenset[str] = frozenset()
    apart: tuple[tuple[str, str], ...] = ()
    filling: frozenset[str] = frozenset()

    @functools.cached_property
    def factors(self) -> tuple[str, ...]:
        """All factors, in order of first appearance."""
        seen = dict.fromkeys(f for dims in self.operands + self.results for dim in dims for f in dim)
        return tuple(seen)

    @functools.cached_property
    def reduced(self) -> tuple[str, ...]:
        """Factors of operands that no result has: splitting one leaves partial results."""
        kept = {f for dims in self.results for dim in dims for f in dim}
        return tuple(f for f in self.factors if f not in kept and f not in self.finished)

    @functools.cached_property
    def splittable(self) -> tuple[str, ...]:
        """Factors that mesh axes may be given to."""
        inner = {f for dims in self.operands + self.results for dim in dims for f in dim[1:]}
        return tuple(f for f in self.factors if f not in self.whole and f not in inner)
