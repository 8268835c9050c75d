"""Reshard: the collectives that take a value from one spec to another.

    permute      an axis gives its dim to another axis, or the axes of a dim change order
    all_to_all   an axis moves from one dim to another
    all_gather   an axis leaves; only the minor axes of a dim can be gathered, others are permuted to the end first
    (slice)      an axis arrives from nowhere: free, and done last

The steps are tried in this order, so that each one moves shards that are as small as they can be.
"""

import dataclasses
import functools
from collections.abc import Mapping

from planner.sharding.spec import Spec, axes_of, pieces, ways


@dataclasses.dataclass(frozen=True)
class Step:
    """One collective of a reshard. fraction: bytes of the array one group holds (what each device sends, for a
    permute), as a fraction of the whole value. spec: what it leads to."""

    kind: str
    axes: tuple[str, ...]
    fraction: float
    spec: Spec


def reshard(source: Spec, target: Spec, sizes: Mapping[str, int]) -> tuple[Step, ...]:
    """The collectives from `source` to `target`, in order; none if slicing is enough."""
    return () if source == target else _steps(source, target, tuple(sizes.items()))


@functools.lru_cache(maxsize=1 << 20)
def _steps(source: Spec, target: Spec, size_items: tuple[tuple[str, int], ...]) -> tuple[Step, ...]:
    sizes = dict(size_items)
    steps: list[Step] = []
    now = _swap(source, target, sizes, steps)
    now = _reorder(now, target, sizes, steps)
    now = _move(now, target, sizes, steps)
    now = _gather(now, target, sizes, steps)
    _slice(now, target, sizes, steps)
    return tuple(steps)


def _swap(now: Spec, target: Spec, sizes: Mapping[str, int], steps: list[Step]) -> Spec:
    """Axes of equal size that replace each other on a dim: one permute of the shard."""
    have, want = set(axes_of(now)), set(axes_of(target))
    dims = [list(dim) for dim in now]
    for d, (mine, theirs) in enumerate(zip(now, target, strict=True)):
        for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a != b and a not in want and b not in have and sizes[a] == sizes[b]:
                dims[d][place] = b
    swapped = tuple(tuple(dim) for dim in dims)
    if swapped != now:
        moved = tuple(a for a, b in zip(axes_of(now), axes_of(swapped), strict=True) if a != b)
        steps.append(Step("permute", moved, 1 / pieces(now, sizes), swapped))
    return swapped


def _reorder(now: Spec, target: Spec, sizes: Mapping[str, int], steps: list[Step]) -> Spec:
    """Axes that stay on a dim must come first and in the target's order: one permute of the shard."""
    ordered = []
    for mine, theirs in zip(now, target, strict=True):
        stay = tuple(a for a in theirs if a in mine)
        ordered.append(stay + tuple(a for a in mine if a not in stay))
    result = tuple(ordered)
    if result != now:
        moved = tuple(a for mine, new in zip(now, result, strict=True) if mine != new for a in mine)
        steps.append(Step("permute", moved, 1 / pieces(now, sizes), result))
    return result


def _move(now: Spec, target: Spec, sizes: Mapping[str, int], steps: list[Step]) -> Spec:
    """Axes that change dims: one all-to-all for each pair of dims."""
    dims = list(now)
    for d, theirs in enumerate(target):
        for source in range(len(dims)):
            moving = tuple(a for a in dims[source] if a in theirs) if source != d else ()
            if not moving:
                continue
            before = pieces(tuple(dims), sizes)
            dims[source] = tuple(a for a in dims[source] if a not in moving)
            dims[d] = dims[d] + moving
            steps.append(Step("all_to_all", moving, ways(moving, sizes) / before, tuple(dims)))
    return _reorder(tuple(dims), target, sizes, steps)


def _gather(now: Spec, target: Spec, sizes: Mapping[str, int], steps: list[Step]) -> Spec:
    """Axes that leave: one all-gather for each dim."""
    dims = list(now)
    for d, theirs in enumerate(target):
        leaving = tuple(a for a in dims[d] if a not in theirs)
        if leaving:
            dims[d] = tuple(a for a in dims[d] if a in theirs)
            after = tuple(dims)
            steps.append(Step("all_gather", leaving, 1 / pieces(after, sizes), after))
    return tuple(dims)


def _slice(now: Spec, target: Spec, sizes: Mapping[str, int], steps: list[Step]) -> None:
    """Axes that arrive from nowhere are sliced off; as major axes of a dim they need a permute of the shard."""
    arrived = tuple(
        mine + tuple(a for a in theirs if a not in mine) for mine, theirs in zip(now, target, strict=True)
    )
    if arrived != target:
        moved = tuple(a for mine, new in zip(arrived, target, strict=True) if mine != new for a in mine)
        steps.append(Step("permute", moved, 1 / pieces(target, sizes), target))
