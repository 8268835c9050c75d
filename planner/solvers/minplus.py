"""The inner loop of elimination: a sum of tables, minimised over one axis, without building the sum."""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from planner.cost.problem import Floats

BLOCK = 1 << 16  # entries that stay in a core's cache while they are added and compared


INTERRUPTED = "interrupted"


class OutOfTime(Exception):
    """The deadline passed before the work was complete."""


def why(error: BaseException) -> str:
    """Why a search was cut short by OutOfTime or KeyboardInterrupt, in words."""
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else "the time was up"


def min_plus(parts: Sequence[Floats], sizes: Sequence[int], deadline: float = np.inf) -> Floats:
    """out[s] = min_a sum of parts[a, s]; parts have len(sizes) axes, of extent one where they do not vary.

    Blocks of s are kept in cache while a runs. Raises OutOfTime when time.monotonic() passes `deadline`."""
    parts = _absorbed(parts)
    rest = tuple(sizes[1:])
    if int(np.prod(sizes, dtype=float)) <= BLOCK:
        return np.ascontiguousarray(np.broadcast_to(_summed(parts).min(axis=0), rest))
    out = np.full(rest, np.inf)
    for block in _blocks(rest):
        if time.monotonic() > deadline:
            raise OutOfTime
        view = out[block]
        cut = [part[(slice(None), *_cut(block, part.shape[1:]))] for part in parts]
        step = max(1, BLOCK // max(1, view.size))
        for start in range(0, sizes[0], step):
            total = _summed([part[start : start + step] for part in cut])
            np.minimum(view, total[0] if step == 1 else total.min(axis=0), out=view)
    return out


def _absorbed(parts: Sequence[Floats]) -> list[Floats]:
    """Adds each part into another one that varies along all its axes, if there is one; small parts first."""
    left = sorted(parts, key=lambda part: part.size)
    kept: list[Floats] = []
    for index, part in enumerate(left):
        for later in range(index + 1, len(left)):
            if all(a in (1, b) for a, b in zip(part.shape, left[later].shape, strict=True)):
                left[later] = left[later] + part
                break
        else:
            kept.append(part)
    return kept


def _summed(parts: Sequence[Floats]) -> Floats:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Cuts an array into boxes of at most BLOCK entries, whole along the last axes."""
    if not shape:
        yield ()
        return
    inner = int(np.prod(shape[1:], dtype=float))
    step = max(1, BLOCK // max(1, inner))
    for start in range(0, shape[0], step):
        if inner > BLOCK:
            for tail in _blocks(shape[1:]):
                yield (slice(start, start + 1), *tail)
        else:
            yield (slice(start, start + step), *(slice(None) for _ in shape[1:]))


def _cut(block: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(None) if extent == 1 else piece for piece, extent in zip(block, shape, strict=True))
