"""Planned collectives beside compiled ones, one to one.

Both sides are brought to one form first (`Moved`). Then pairs are taken in passes, from those that agree in
everything to those that agree in less:

    as planned       kind, axes, bytes and runs agree; of several such, one of the same source line
    as all_reduce    written as another kind: a CPU has no reduce-scatter; a TPU uses none on small tiles, and
                     gathers small arrays by a sum with zeros
    as permutes      written as a loop of permutes around the matmul beside it (a TPU, for large ones)
    half the bytes   moved in a type of half the width: a TPU rounds the operands of a matmul first
    twice the bytes  moved in a wider type: a CPU sums bfloat16 as float32
    all at once      moved for all runs of a loop together, after it: a TPU sums stacked gradients so
    other runs       moved another number of times in a step
    padded           a little more is moved: a TPU rounds the parts of a reduce-scatter up to whole tiles

What is left is planned and missing, or compiled and not planned. Arrays of at most SCALAR bytes are summed
up: compilers join and split such sums as they like, and they cost next to nothing.
"""

import dataclasses
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from planner.hlo import Found
from planner.plans import Collective
from planner.replica_groups import spanned_axes

SCALAR = 64.0  # bytes
PADDING = 1.05  # of the planned bytes: what rounding parts up to tiles may add
AS_PLANNED, MISSING, UNPLANNED, SCALARS = "as planned", "missing", "unplanned", "scalars"


@dataclasses.dataclass(frozen=True)
class Moved:
    """One collective, planned or compiled. axes: in the mesh's order. bytes, wire_bytes: per run; runs: in a
    step; value: its name; source: file:line without folders; permutes: whether it is written as those."""

    kind: str
    axes: tuple[str, ...]
    bytes: float
    wire_bytes: float
    runs: float
    value: str
    source: str
    permutes: bool = False

    @property
    def sent(self) -> float:
        """Bytes that each device sends in a step."""
        return self.wire_bytes * self.runs


@dataclasses.dataclass(frozen=True)
class Row:
    """One planned collective beside the compiled one; either may be None. status: see the module."""

    status: str
    planned: Moved | None
    compiled: Moved | None

    @property
    def either(self) -> Moved:
        """The planned one, or the compiled one where nothing was planned."""
        found = self.planned or self.compiled
        assert found is not None, "a row without collectives"
        return found


def planned_moves(collectives: Iterable[Collective], sizes: Mapping[str, int]) -> list[Moved]:
    """The plan's collectives; those over axes of size 1 move nothing."""
    found = []
    for one in collectives:
        axes = tuple(axis for axis in sizes if axis in one.axes and sizes[axis] > 1)
        if axes:
            found.append(Moved(one.kind, axes, one.bytes, one.wire_bytes, one.times, one.value, one.source))
    return found


def compiled_moves(collectives: Iterable[Found], sizes: Mapping[str, int]) -> list[Moved]:
    """The program's collectives in the plan's words. A loop of unknown length counts once."""
    found = []
    for one in collectives:
        kind = one.kind.removeprefix("collective-").replace("-", "_")
        axes = _axes(one, sizes)
        source = os.path.basename(one.source)
        runs = 1.0 if one.times is None else one.times
        if runs:
            found.append(
                Moved(kind, axes, one.bytes, one.wire_bytes, runs, one.name, source, bool(one.permutes))
            )
    return found


def _axes(one: Found, sizes: Mapping[str, int]) -> tuple[str, ...]:
    return spanned_axes(one.groups, tuple(sizes.values()), sizes)


def match(planned: Sequence[Moved], compiled: Sequence[Moved]) -> tuple[Row, ...]:
    """Rows in the order of the plan, then what was not planned, then one row for all scalars."""
    found: dict[int, tuple[str, Moved]] = {}
    left_planned = [i for i, one in enumerate(planned) if one.bytes > SCALAR]
    left_compiled = [i for i, one in enumerate(compiled) if one.bytes > SCALAR]
    for status, mine, theirs in _PASSES:
        waiting: dict[Hashable, list[int]] = defaultdict(list)
        for i in left_compiled:
            waiting[theirs(compiled[i])].append(i)
        taken = set()
        for i in left_planned:
            if waiting[mine(planned[i])]:
                j = waiting[mine(planned[i])].pop(0)
                taken.add(j)
                found[i] = (status or _written(compiled[j]), compiled[j])
        left_planned = [i for i in left_planned if i not in found]
        left_compiled = [i for i in left_compiled if i not in taken]
    for i in left_planned:
        j = _padded(planned[i], [(j, compiled[j]) for j in left_compiled])
        if j is not None:
            left_compiled.remove(j)
            found[i] = ("padded", compiled[j])
    rows = [
        Row(found[i][0], one, found[i][1]) if i in found else Row(MISSING, one, None)
        for i, one in enumerate(planned)
        if one.bytes > SCALAR
    ]
    rows += [Row(UNPLANNED, None, compiled[i]) for i in left_compiled]
    small = [_total([one for one in side if one.bytes <= SCALAR]) for side in (planned, compiled)]
    return (*rows, Row(SCALARS, *small)) if any(small) else tuple(rows)


def _padded(wanted: Moved, left: Sequence[tuple[int, Moved]]) -> int | None:
    """Which of the sums that are left moves only a little more than what is wanted, and as little as any."""
    alike = _summed(dataclasses.replace(wanted, bytes=0.0))
    near = [
        (one.bytes, j)
        for j, one in left
        if 1 < one.bytes / wanted.bytes <= PADDING and _summed(dataclasses.replace(one, bytes=0.0)) == alike
    ]
    return min(near)[1] if near and alike[0] == "sum" else None


def _total(small: Sequence[Moved]) -> Moved | None:
    if not small:
        return None
    runs = sum(one.runs for one in small)
    sent, held = sum(one.sent for one in small), sum(one.bytes * one.runs for one in small)
    return Moved("any", (), held / runs, sent / runs, runs, f"at most {SCALAR:.0f} bytes each", "")


def _written(one: Moved) -> str:
    return "as permutes" if one.permutes else f"as {one.kind}"


def _exact(one: Moved) -> Hashable:
    return _alike(one), one.source


def _alike(one: Moved) -> Hashable:
    return one.kind, one.axes, one.bytes, one.runs, one.permutes


def _placed(one: Moved) -> Hashable:
    return _summed(one), one.source


def _summed(one: Moved) -> tuple[str, tuple[str, ...], float, float]:
    kind = "sum" if one.kind in ("all_reduce", "reduce_scatter") else one.kind
    return kind, one.axes, one.bytes, one.runs


def _gathered(one: Moved) -> Hashable:
    return _alike(dataclasses.replace(one, kind="all_reduce") if one.kind == "all_gather" else one)


def _scaled(factor: float) -> Callable[[Moved], Hashable]:
    return lambda one: _summed(dataclasses.replace(one, bytes=one.bytes * factor))


def _in_all(one: Moved) -> Hashable:
    return _once(dataclasses.replace(one, bytes=one.bytes * one.runs))


def _once(one: Moved) -> Hashable:
    return _summed(dataclasses.replace(one, runs=1.0))


_PASSES: tuple[tuple[str, Callable[[Moved], Hashable], Callable[[Moved], Hashable]], ...] = (
    (AS_PLANNED, _exact, _exact),
    (AS_PLANNED, _alike, _alike),
    ("", _placed, _placed),
    ("", _summed, _summed),
    ("", _gathered, _alike),
    ("half the bytes", _summed, _scaled(2.0)),
    ("twice the bytes", _summed, _scaled(0.5)),
    ("all at once", _in_all, _in_all),
    ("other runs", _once, _once),
)
