"""The parts of a problem's file, checked: each error says which part is wrong, and what should stand there.

Lists of numbers become arrays, equal lists one object. A file may be written by anybody, and a solver must
not stumble over it; it is read in seconds, so every check is of a whole list where that can be.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Usage

FORBIDDEN_IN_FILE = 10**18
_LAST = 10**8  # time; a solver keeps a few numbers for each
_EXACT = 2**53  # whole numbers up to this are floats without loss

Numbers = NDArray[Any]  # int64 where that is enough, else float64, uint64 or Python's own numbers
Place = tuple[str, int]  # the name of a list of lists, and the index in it


class Wrong(ValueError):
    """What is wrong with a file, and what should stand there."""


class Tables:
    """Makes arrays of the lists in a file; equal lists become one object."""

    def __init__(self) -> None:
        self._costs: dict[object, tuple[Numbers, Floats]] = {}
        self._usages: dict[object, Floats] = {}

    def costs(self, row: Any, shape: tuple[int, ...], place: Place) -> tuple[Numbers, Floats]:
        """As they stand in the file, and as a solver wants them."""
        key, numbers = _numbers(row, shape, place)
        known = self._costs.get(key)
        if known is None:
            floats = np.where(numbers >= FORBIDDEN_IN_FILE, np.inf, numbers).astype(np.float64)
            known = self._costs[key] = _sound(numbers, place).reshape(shape), floats.reshape(shape)
        return known

    def usages(self, row: Any, shape: tuple[int, ...], place: Place) -> Floats:
        """Bytes."""
        key, numbers = _numbers(row, shape, place)
        known = self._usages.get(key)
        if known is None:
            known = self._usages[key] = _sound(numbers, place).astype(np.float64).reshape(shape)
        return known


def _numbers(row: Any, shape: tuple[int, ...], place: Place) -> tuple[object, Numbers]:
    """The flat array of a list of numbers, with a key that equal lists share."""
    if not isinstance(row, list) or len(row) != math.prod(shape):
        found = f"{len(row)} numbers" if isinstance(row, list) else f"{row!r:.40}"
        size = " x ".join(map(str, shape))
        raise Wrong(f"{_at(place)} is {found} where {size} are wanted; give one per strategy")
    try:
        numbers = np.asarray(row)
    except (ValueError, OverflowError):  # lists in the list, or numbers of hundreds of digits
        numbers = np.asarray(row, dtype=object)
    if numbers.dtype.kind == "f" and any(type(x) is int and abs(x) > _EXACT for x in row):
        numbers = np.asarray(row, dtype=object)
    if numbers.dtype.kind in "iuf":
        return (shape, numbers.dtype.str, numbers.tobytes()), numbers
    if numbers.dtype.kind != "O" or not all(type(x) in (int, float) for x in row):
        raise Wrong(f"{_at(place)} holds something else than numbers; give one number per strategy")
    return (shape, tuple(row)), numbers


def _sound(numbers: Numbers, place: Place) -> Numbers:
    if not (numbers > -math.inf).all():  # false for NaN as well
        raise Wrong(f"{_at(place)} holds NaN or -Infinity; give finite numbers")
    return numbers


def _at(place: Place) -> str:
    return f"{place[0]}[{place[1]}]"


def part_of(content: Any, key: str, kind: type, above: str = "", count: int | None = None) -> Any:
    """content[key], which has to be a list, of `count` entries, or an object."""
    found: Any = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, kind):
        what = "a list" if kind is list else "an object"
        raise Wrong(f"it has no {above}{key}; give {what} of that name")
    if count is not None and len(found) != count:
        each = "node" if above == "nodes." else "edge"
        raise Wrong(f"{above}{key} has {len(found)} entries for {count} {each}s; give one per {each}")
    return found


def count_of(row: Any, v: int) -> int:
    """The number of strategies of node v, by its list of costs."""
    if not isinstance(row, list) or not row:
        raise Wrong(f"nodes.costs[{v}] has no numbers; give one cost per strategy, at least one")
    return len(row)


def ends_of(pair: Any, e: int, count: int) -> tuple[int, int]:
    """The ends of edge e among `count` nodes."""
    if not (
        isinstance(pair, list) and len(pair) == 2 and all(type(v) is int and 0 <= v < count for v in pair)
    ):
        raise Wrong(f"edges.nodes[{e}] is {pair!r:.40}; give two nodes, each from 0 to {count - 1}")
    return pair[0], pair[1]


def interval_of(pair: Any, place: Place) -> tuple[int, int]:
    """A half-open interval of times."""
    if not (
        isinstance(pair, list) and len(pair) == 2 and all(type(t) is int and 0 <= t <= _LAST for t in pair)
    ):
        raise Wrong(f"{_at(place)} is {pair!r:.40}; give two times, [first, end), from 0 to {_LAST}")
    return pair[0], pair[1]


def usages_of(
    content: dict[str, Any], key: str, shapes: Sequence[tuple[int, ...]], tables: Tables, above: str
) -> list[Usage]:
    """The usages in a list of [index, first, end, bytes], of nodes or edges with these shapes."""
    found = []
    for i, entry in enumerate(part_of(content, key, list, above) if key in content else ()):
        if not (
            isinstance(entry, list)
            and len(entry) == 4
            and type(entry[0]) is int
            and 0 <= entry[0] < len(shapes)
        ):
            raise Wrong(f"{above}{key}[{i}] is {entry!r:.40}; give [index, first, end, bytes]")
        place = (above + key, i)
        first, last = interval_of(entry[1:3], place)
        found.append(Usage(entry[0], first, last, tables.usages(entry[3], shapes[entry[0]], place)))
    return found


def limit_of(given: Any) -> float:
    """The memory limit, inf for none."""
    if given is None:
        return math.inf
    if type(given) not in (int, float) or math.isnan(given):
        raise Wrong(f"usage_limit is {given!r}; give a number of bytes")
    return float(given)
