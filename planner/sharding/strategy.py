"""Strategy: which factors of one node the mesh axes split, and how partial sums are finished.

Each mesh axis does one thing in a node: nothing (the work is repeated along it), or split one factor.
Splitting a reduced factor of a heavy op leaves partial sums, which are finished by an all-reduce, or by a
reduce-scatter onto a dim of the result. Inside a block they are finished by an all-reduce.

    {x: b, y: k>0}    axis x splits factor b; y splits the reduced k, whose sums are scattered onto dim 0

Axes of one dim stand in the order of the mesh (major first), those that a reduce-scatter adds last. Where
parameters live (nodes that never see an example) the reverse order is tried too: 3-D parallelism keeps a
weight as P(z, (y, x)), because x is gathered for use, and only the minor axes of a dim can be gathered
without moving shards about.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

from planner.graph.coarsen import Node
from planner.graph.labels import SAMPLE
from planner.graph.rule import Dims
from planner.sharding.spec import Spec, ways

ALL_REDUCE = -1
_MOST_SCATTERED_RANK = 4


@dataclasses.dataclass(frozen=True)
class Strategy:
    """split: axes of each factor, major first. finish: for each axis on a reduced factor the dim of the
    result its partial sums are scattered onto, or ALL_REDUCE."""

    split: Mapping[str, tuple[str, ...]]
    finish: Mapping[str, int]

    def axes(self, factor: str) -> tuple[str, ...]:
        """The axes that split a factor."""
        return self.split.get(factor, ())


def show(strategy: Strategy) -> str:
    """One line, which `parse` reads back.

    >>> show(Strategy({"b": ("x",), "k": ("y",)}, {"y": 0}))
    '{x: b, y: k>0}'
    """
    marks = []
    for factor, axes in strategy.split.items():
        for axis in axes:
            place = strategy.finish.get(axis)
            mark = "" if place is None else ">+" if place == ALL_REDUCE else f">{place}"
            marks.append(f"{axis}: {factor}{mark}")
    return "{" + ", ".join(marks) + "}"


def parse(text: str) -> Strategy:
    """The inverse of `show`. Raises ValueError on anything else.

    >>> parse("{x: b, y: k>0}")
    Strategy(split={'b': ('x',), 'k': ('y',)}, finish={'y': 0})
    """
    split: dict[str, tuple[str, ...]] = {}
    finish: dict[str, int] = {}
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(f"{text!r} is not a strategy; write it as {{x: b, y: k>0}}.")
    for mark in filter(None, (part.strip() for part in text[1:-1].split(","))):
        axis, _, rest = mark.partition(": ")
        factor, _, place = rest.partition(">")
        split[factor] = (*split.get(factor, ()), axis)
        if place:
            finish[axis] = ALL_REDUCE if place == "+" else int(place)
    return Strategy(split, finish)


def spec_of(dims: Dims, strategy: Strategy) -> Spec:
    """The spec of a value as a node reads or makes it, before partial sums are finished."""
    split = strategy.split
    return tuple([split.get(dim[0], ()) if dim else () for dim in dims])


def result_spec(dims: Dims, strategy: Strategy) -> Spec:
    """The spec of a result after its partial sums are finished: scattered axes come last in their dim."""
    kept = spec_of(dims, strategy)
    if all(place == ALL_REDUCE for place in strategy.finish.values()):
        return kept
    scattered = [tuple(a for a, d in strategy.finish.items() if d == dim) for dim in range(len(dims))]
    return tuple(have + extra for have, extra in zip(kept, scattered, strict=True))


def of_state(node: Node) -> bool:
    """Whether no example lies along any dim of a node that keeps values: parameters and moments do."""
    return node.kind in ("leaf", "block") and not any(label == SAMPLE for _, label in node.labels)


def strategies(node: Node, sizes: Mapping[str, int], stores_state: bool) -> tuple[Strategy, ...]:
    """Every strategy of a node on a mesh of these axis sizes; the first one splits nothing.

    stores_state: also try the axes of a dim in reverse order.
    """
    extents = dict(node.sizes)
    per_axis = [list(_choices(node, axis, sizes, extents)) for axis in sizes]
    found = []
    for combination in itertools.product(*per_axis):
        candidate = _assemble(combination)
        if _fits(node, candidate, extents, sizes):
            found.append(candidate)
            if stores_state and any(len(axes) > 1 for axes in candidate.split.values()):
                found.append(
                    Strategy({f: axes[::-1] for f, axes in candidate.split.items()}, candidate.finish)
                )
    return tuple(found)


_Move = tuple[str, str | None, int | None]  # axis, factor, where its partial sums go


def _choices(node: Node, axis: str, sizes: Mapping[str, int], extents: Mapping[str, int]) -> Iterator[_Move]:
    yield axis, None, None
    if sizes[axis] == 1:
        return
    reduced = set(node.sums[0].reduced) if node.kind == "op" and node.sums else set()
    for factor in node.splittable:
        if extents[factor] % sizes[axis]:
            continue
        if factor not in reduced:
            yield axis, factor, None
            continue
        yield axis, factor, ALL_REDUCE
        dims = node.outputs[0].dims
        if len(node.outputs) == 1 and len(dims) <= _MOST_SCATTERED_RANK:
            for place, dim in enumerate(dims):
                if dim and extents[dim[0]] % sizes[axis] == 0:
                    yield axis, factor, place


def _assemble(combination: tuple[_Move, ...]) -> Strategy:
    split: dict[str, tuple[str, ...]] = {}
    finish: dict[str, int] = {}
    for axis, factor, place in combination:
        if factor is not None:
            split[factor] = (*split.get(factor, ()), axis)
        if place is not None:
            finish[axis] = place
    return Strategy(split, finish)


def _fits(node: Node, strategy: Strategy, extents: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    """Whether all splits are even, those of the scattered result included, halos come from neighbours, and
    the factors that are split may be so together."""
    if any(one in strategy.split and other in strategy.split for one, other in node.apart):
        return False
    busy = sum(len(axes) for axes in strategy.split.values())
    if not node.filling.isdisjoint(strategy.split) and busy < sum(size > 1 for size in sizes.values()):
        return False
    if _half_scattered(node, strategy):
        return False
    if any(extents[factor] % ways(axes, sizes) for factor, axes in strategy.split.items() if len(axes) > 1):
        return False
    for border in node.borders:
        dim = border.dims[border.dim]
        rows = math.prod(extents[factor] for factor in dim) // ways(strategy.axes(dim[0]), sizes)
        if strategy.axes(dim[0]) and rows < max(border.before, border.after):
            return False
    if any(place != ALL_REDUCE for place in strategy.finish.values()):
        dims = node.outputs[0].dims
        for dim, axes in zip(dims, result_spec(dims, strategy), strict=True):
            if dim and extents[dim[0]] % ways(axes, sizes):
                return False
    return True


def _half_scattered(node: Node, strategy: Strategy) -> bool:
    """Whether some of several sums are scattered onto a dim that both operands have and that is split
    already, and others are not: XLA's partitioner (jaxlib 0.10) computes wrong numbers then."""
    places = list(strategy.finish.values())
    if len(places) < 2 or len(set(places)) == 1:
        return False
    factors = [node.outputs[0].dims[place][0] for place in places if place != ALL_REDUCE]
    shared = [f for f in factors if sum((f,) in port.dims for port in node.inputs) > 1]
    return any(f in strategy.split for f in shared)
