"""Graph: what the program computes, flat and in program order, whatever the nesting of its jaxpr.

Loop bodies are inlined once, with the number of times they run (`Op.repeat`). A value that crosses the
border of a loop goes through a pseudo-op, so that every tie is a rule like any other:

    scan_slice   l a b -> a b             one iteration's slice of a scanned operand
    scan_stack   a b -> l a b             a per-iteration result, stacked
    loop_carry   a b, a b -> a b, a b     (initial, next) -> (carry inside the body, final)
    cond_join    a b, a b -> a b          the results of the branches of a cond
"""

import dataclasses
from collections.abc import Iterable, Mapping

from planner.graph.rule import Rule

Path = tuple[
    tuple[int, str, int | None], ...
]  # (equation, parameter, index in it) of each enclosing equation


@dataclasses.dataclass(frozen=True)
class Site:
    """Where a value is made or used in the nested jaxpr.

    kind 'in': input `index` of the jaxpr at `path`; 'out': result `index` of equation `eqn`;
    'use': operand `index` of equation `eqn`; 'ret': returned value `index` of the jaxpr at `path`.
    """

    kind: str
    path: Path
    eqn: int
    index: int


@dataclasses.dataclass(frozen=True)
class Value:
    """An array of the program. made: where to constrain it, in the order the program makes it. line: of the
    user's file that makes it, `gpt.py:89` or `gpt.py:89 backward`. mark: its checkpoint name."""

    id: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    name: str = ""
    made: tuple[Site, ...] = ()
    line: str = ""
    mark: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of the whole, unsharded array."""
        size = self.itemsize
        for extent in self.shape:
            size *= extent
        return size


WITH_RULE = "with_rule"  # the primitive of a user's function that has a rule of its own


@dataclasses.dataclass(frozen=True)
class Region:
    """Code for one device of a mesh of these sizes. tied: factors, and the axes that have to split each."""

    mesh: tuple[tuple[str, int], ...]
    tied: tuple[tuple[str, tuple[str, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Op:
    """One equation, or one pseudo-op at the border of a loop.

    operands: value ids, None for a literal. uses: one site tuple per operand, where a use can be constrained.
    flops: floating-point operations of one run, unsharded. repeat: times it runs in a step.
    light: true if XLA fuses it with its neighbours (element-wise, broadcast, small reductions). inside: where
    it is code for one device, of which mesh.
    """

    id: int
    primitive: str
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    uses: tuple[tuple[Site, ...], ...]
    rule: Rule
    flops: float
    light: bool
    repeat: float
    region: Path
    source: str = ""
    inside: Region | None = None


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array argument or result of the step.

    path: how a user names it, `state.params.layers.0.w`. index: position among the flattened arguments
    (or results). partner: for an argument, the flat index of the result that replaces it, if there is one.
    """

    value: int
    path: str
    index: int
    partner: int | None = None
    donated: bool = False


@dataclasses.dataclass(frozen=True)
class Graph:
    """A whole step. ops are in program order; unknown lists primitives without a rule, with their count."""

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    unknown: Mapping[str, int]
    notes: tuple[str, ...] = ()


def runs_outside(op: Op, repeats: Mapping[Path, float]) -> float:
    """Runs in a step of what is around the loop body or branch that an op stands in. repeats: of the ops of
    every region."""
    around = (op.region[:depth] for depth in range(len(op.region) - 1, 0, -1))
    return next((repeats[path] for path in around if path in repeats), 1.0)


def repeats_of(ops: Iterable[Op]) -> dict[Path, float]:
    """How often the ops of every region run in a step."""
    return {op.region: op.repeat for op in ops}
