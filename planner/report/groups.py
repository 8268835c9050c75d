"""Alike values and alike collectives as one row each, so that 48 equal layers do not take 48 rows.

Two paths are alike when they differ only in numbers that stand for a position, `state.layers.0.w` and
`state.layers.7.w`, or in one word, `mu.w` and `nu.w`. A number that is the same all over a group is shown,
one that varies becomes `*`; words that vary are listed in braces.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from planner.plans import Collective, LeafPlan

_POSITION = re.compile(
    r"(?:(?<=[._\[])|^)\d+(?![A-Za-z0-9])"
)  # layers.3 and Block_3; not w1, not train.py:12
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


@dataclasses.dataclass(frozen=True)
class LeafGroup:
    """Alike values: the pattern of their paths, one of them, the paths, and the bytes per device of all."""

    pattern: str
    leaf: LeafPlan
    paths: tuple[str, ...]
    bytes: float

    @property
    def count(self) -> int:
        """How many values there are in the group."""
        return len(self.paths)


@dataclasses.dataclass(frozen=True)
class CollectiveGroup:
    """Alike collectives: how many runs in a step, wire bytes per device and seconds of all of them."""

    kind: str
    axes: tuple[str, ...]
    pattern: str
    source: str
    runs: float
    wire_bytes: float
    seconds: float


def dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> str:
    """An array's type as jaxprs print it.

    >>> dtype_and_shape("float32", (768, 3072)), dtype_and_shape("bool", ()), dtype_and_shape("key<fry>", ())
    ('f32[768,3072]', 'bool[]', 'key<fry>[]')
    """
    word = re.match(r"[a-z]+", dtype)
    name = word.group() if word else ""
    short = _SHORT[name] + dtype[len(name) :] if name in _SHORT else dtype
    return f"{short}[{','.join(map(str, shape))}]"


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Axes and sizes of a mesh on one line.

    >>> mesh_text({"data": 4, "model": 2})
    'data=4 model=2'
    """
    return " ".join(f"{axis}={size}" for axis, size in mesh.items()) or "one device"


def starred(path: str) -> str:
    """The path with every position number as `*`.

    >>> starred("state.layers.11.w1"), starred("params.Block_3.kernel")
    ('state.layers.*.w1', 'params.Block_*.kernel')
    """
    return _POSITION.sub("*", path)


def common(paths: Sequence[str]) -> str:
    """The pattern of alike paths; numbers that all of them share stay.

    >>> common(["opt.0.mu.3.w", "opt.0.mu.4.w"])
    'opt.0.mu.*.w'
    """
    columns = zip(*(_POSITION.findall(path) for path in paths), strict=True)
    texts = iter([column[0] if len(set(column)) == 1 else "*" for column in columns])
    return _POSITION.sub(lambda _: next(texts), paths[0])


def group_leaves(leaves: Iterable[LeafPlan]) -> tuple[LeafGroup, ...]:
    """Alike leaves of equal shape, type and spec as one, in order of first appearance."""
    found: dict[tuple[object, ...], list[LeafPlan]] = {}
    for leaf in leaves:
        found.setdefault((starred(leaf.path), _kind(leaf)), []).append(leaf)
    groups = []
    for same in found.values():
        paths = tuple(leaf.path for leaf in same)
        groups.append(LeafGroup(common(paths), same[0], paths, sum(leaf.bytes for leaf in same)))
    depth = max((group.pattern.count(".") + 1 for group in groups), default=0)
    for position in reversed(
        range(depth)
    ):  # the last word first: a layer's weights are merged before mu and nu
        groups = _merged(groups, position)
    return tuple(groups)


def _kind(leaf: LeafPlan) -> tuple[object, ...]:
    return leaf.shape, leaf.dtype, leaf.spec


def _merged(groups: Sequence[LeafGroup], position: int) -> list[LeafGroup]:
    """Groups that differ in nothing but the word at `position` as one."""
    found: dict[tuple[object, ...], list[LeafGroup]] = {}
    for group in groups:
        words = group.pattern.split(".")
        rest = (*words[:position], *words[position + 1 :])
        found.setdefault((len(words) > position, rest, _kind(group.leaf)), []).append(group)
    return [
        LeafGroup(
            _braced([group.pattern.split(".") for group in same], position),
            same[0].leaf,
            tuple(path for group in same for path in group.paths),
            sum(group.bytes for group in same),
        )
        for same in found.values()
    ]


def _braced(paths: Sequence[Sequence[str]], position: int) -> str:
    if len(paths) == 1:
        return ".".join(paths[0])
    words = list(paths[0])
    words[position] = "{" + ",".join(path[position] for path in paths) + "}"
    return ".".join(words)


def group_collectives(collectives: Iterable[Collective]) -> tuple[CollectiveGroup, ...]:
    """Alike collectives as one, the costliest first."""
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for item in collectives:
        groups.setdefault((item.kind, item.axes, starred(item.value), item.bytes), []).append(item)
    rows = [
        CollectiveGroup(
            kind=group[0].kind,
            axes=group[0].axes,
            pattern=common([item.value for item in group]),
            source=group[0].source,
            runs=sum(item.times for item in group),
            wire_bytes=sum(item.wire_bytes * item.times for item in group),
            seconds=sum(item.seconds * item.times for item in group),
        )
        for group in groups.values()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))
