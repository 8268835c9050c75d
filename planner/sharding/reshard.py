"""Reshard: the collectives that take a value from one spec to another.

    permute      every device takes another one's shard: axes give their place to others, or change order
    all_to_all   axes move from one dim to another
    all_gather   axes leave a dim
    (slice)      axes arrive from nowhere: free, and done last

The steps are tried in this order, so that each one moves shards that are as small as they can be. Where all
dims are cut into as many pieces before as after, one permute does it all. An all-to-all and an all-gather
take the minor axes of a dim only, because shards would not be contiguous otherwise; a permute brings them
there.
"""

import dataclasses
import functools
from collections.abc import Mapping

from planner.sharding.spec import Spec, axes_of, pieces, ways


@dataclasses.dataclass(frozen=True)
class Step:
    """One collective of a reshard, in groups of devices that differ in `axes` only. fraction: bytes of the
    array one group holds (what each device sends, for a permute), as a fraction of the whole value. spec:
    what it leads to."""

    kind: str
    axes: tuple[str, ...]
    fraction: float
    spec: Spec


def reshard(source: Spec, target: Spec, sizes: Mapping[str, int]) -> tuple[Step, ...]:
    """The collectives from `source` to `target`, in order; none if slicing is enough."""
    return () if source == target else _steps(source, target, tuple(sizes.items()))


def in_two(now: Spec, gather: Step, sizes: Mapping[str, int]) -> tuple[Step, Step]:
    """An all-gather of several axes, from the spec `now`, as two that together send as much: of all axes but
    the first, then of the first."""
    first, rest = gather.axes[:1], gather.axes[1:]
    between = tuple(
        tuple(axis for axis in before if axis not in rest) if before != after else after
        for before, after in zip(now, gather.spec, strict=True)
    )
    half = Step(gather.kind, rest, 1 / pieces(between, sizes), between)
    return half, dataclasses.replace(gather, axes=first)


@functools.lru_cache(maxsize=1 << 20)
def _steps(source: Spec, target: Spec, size_items: tuple[tuple[str, int], ...]) -> tuple[Step, ...]:
    sizes = dict(size_items)
    steps: list[Step] = []
    if all(ways(mine, sizes) == ways(theirs, sizes) for mine, theirs in zip(source, target, strict=True)):
        _permute(source, target, sizes, steps)
        return tuple(steps)
    now = _permute(source, _arranged(_swapped(source, target, sizes), target), sizes, steps)
    now = _move(now, target, sizes, steps)
    for dim, theirs in enumerate(target):
        now = _gather(now, dim, tuple(a for a in now[dim] if a not in theirs), sizes, steps)
    _permute(_slice(now, target), target, sizes, steps)
    return tuple(steps)


def _permute(now: Spec, then: Spec, sizes: Mapping[str, int], steps: list[Step]) -> Spec:
    """One permute from `now` to `then`, which cut every dim into as many pieces; none if they are equal."""
    if now != then:
        before, after = _places(now, sizes), _places(then, sizes)
        moved = tuple(axis for axis in sizes if before.get(axis) != after.get(axis))
        steps.append(Step("permute", moved, 1 / pieces(now, sizes), then))
    return then


def _places(spec: Spec, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The dim of each axis, and how many shards further its next coordinate lies. Devices that trade shards
    have the same coordinate on an axis that keeps its place."""
    return {axis: (d, ways(dim[i + 1 :], sizes)) for d, dim in enumerate(spec) for i, axis in enumerate(dim)}


def _swapped(now: Spec, target: Spec, sizes: Mapping[str, int]) -> Spec:
    """Axes that leave a dim replaced by axes of equal size that arrive on it from nowhere."""
    have, want = set(axes_of(now)), set(axes_of(target))
    dims = []
    for mine, theirs in zip(now, target, strict=True):
        arriving = [b for b in theirs if b not in have]
        dim = list(mine)
        for place, a in enumerate(mine):
            b = next((b for b in arriving if sizes[b] == sizes[a]), None)
            if a not in want and b is not None:
                dim[place] = b
                arriving.remove(b)
        dims.append(tuple(dim))
    return tuple(dims)


def _arranged(now: Spec, target: Spec) -> Spec:
    """On each dim first the axes that stay, in the target's order, then those that leave, then those that
    move to another dim, the next to move last."""
    home = {axis: (-d, place) for d, dim in enumerate(target) for place, axis in enumerate(dim)}
    dims = []
    for mine, theirs in zip(now, target, strict=True):
        stay = tuple(a for a in theirs if a in mine)
        leave = tuple(a for a in mine if a not in home)
        move = sorted((a for a in mine if a in home and a not in theirs), key=home.__getitem__)
        dims.append((*stay, *leave, *move))
    return tuple(dims)


def _move(now: Spec, target: Spec, sizes: Mapping[str, int], steps: list[Step]) -> Spec:
    """Axes that change dims: one all-to-all for each pair of dims.

    A dim is only ever cut into as many pieces as divide those it has before or after, because nothing else
    is known to divide its extent. Where a move would cut it finer, axes are gathered that are in its way:
    those that leave the dim, or else the moving ones themselves, which are sliced off again at the end.
    """
    cuts = [(ways(mine, sizes), ways(theirs, sizes)) for mine, theirs in zip(now, target, strict=True)]
    while moves := _moves(now, target):
        fitting = [
            (source, dim, moving)
            for source, dim, moving in moves
            if any(most % ways(now[dim] + moving, sizes) == 0 for most in cuts[dim])
        ]
        if fitting:
            now = _all_to_all(now, *fitting[0], sizes, steps)
            continue
        source, dim, moving = moves[0]
        leaving = tuple(a for a in now[dim] if a not in axes_of(target))
        now = (
            _gather(now, dim, leaving, sizes, steps)
            if leaving
            else _gather(now, source, moving, sizes, steps)
        )
    return _permute(now, _arranged(now, target), sizes, steps)


def _moves(now: Spec, target: Spec) -> list[tuple[int, int, tuple[str, ...]]]:
    """(from dim, to dim, axes, in the target's order) of all axes that are on another dim than in the
    target."""
    return [
        (source, dim, moving)
        for dim, theirs in enumerate(target)
        for source, mine in enumerate(now)
        if source != dim and (moving := tuple(a for a in theirs if a in mine))
    ]


def _all_to_all(
    now: Spec, source: int, dim: int, moving: tuple[str, ...], sizes: Mapping[str, int], steps: list[Step]
) -> Spec:
    """Axes from one dim to another, where they arrive as the minor ones."""
    now = _permute(now, _with_last(now, source, moving), sizes, steps)
    dims = list(now)
    dims[source] = dims[source][: -len(moving)]
    dims[dim] += moving
    steps.append(Step("all_to_all", moving, ways(moving, sizes) / pieces(now, sizes), tuple(dims)))
    return tuple(dims)


def _gather(
    now: Spec, dim: int, leaving: tuple[str, ...], sizes: Mapping[str, int], steps: list[Step]
) -> Spec:
    """Axes that leave a dim: one all-gather."""
    if not leaving:
        return now
    now = _permute(now, _with_last(now, dim, leaving), sizes, steps)
    now = (*now[:dim], now[dim][: -len(leaving)], *now[dim + 1 :])
    steps.append(Step("all_gather", leaving, 1 / pieces(now, sizes), now))
    return now


def _with_last(now: Spec, dim: int, axes: tuple[str, ...]) -> Spec:
    """The spec with these axes of a dim as its minor ones."""
    first = tuple(a for a in now[dim] if a not in axes)
    return (*now[:dim], first + axes, *now[dim + 1 :])


def _slice(now: Spec, target: Spec) -> Spec:
    """Axes that arrive from nowhere, as the minor axes of their dim. No device needs another for it."""
    return tuple(
        mine + tuple(a for a in theirs if a not in mine) for mine, theirs in zip(now, target, strict=True)
    )
