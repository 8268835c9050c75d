"""Sums that are finished together: partial sums of several ops that are only added to each other.

A compiler that can adds them up first, and finishes one sum where the plan has several (the gradients that
reach one value on several ways: by the query, key and value weights; an embedding that is also the output
matrix):

    add(finish(a), finish(b)) = finish(add(a, b))    if a and b are finished by the same collectives

So the second of two such ops has no collectives of its own where it would have the same as the first. That
depends on both choices: its price stands on an edge between the two.
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.traffic import Network, Transfer
from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph

_ADDING = frozenset({"add", "add_any"})
_PASSING = frozenset({"reshape", "transpose"})  # a conversion between them keeps sums apart


def joined_sums(graph: Graph, coarse: Coarse) -> dict[int, int]:
    """Node -> the node whose sum is added to its own before either is used; chains, in program order."""
    reads = Counter(value for op in graph.ops for value in op.operands)
    reads.update(leaf.value for leaf in graph.results)
    summed = {node.sums[0].value: node.id for node in coarse.nodes if node.kind == "op" and node.sums}
    parts: dict[int, tuple[int, ...]] = {}  # value -> the nodes whose sums it adds up
    for op in graph.ops:
        result = op.results[0]
        if result in summed:
            parts[result] = (summed[result],)
        elif op.primitive in _ADDING | _PASSING and all(v in parts and reads[v] == 1 for v in op.operands):
            added = [value for value in op.operands if value is not None]
            parts[result] = tuple(node for value in added for node in parts.pop(value))
    groups = [sorted(nodes) for nodes in parts.values()]
    return {second: first for group in groups for first, second in itertools.pairwise(group)}


def remaining(first: Sequence[Transfer], second: Sequence[Transfer]) -> Sequence[Transfer]:
    """The collectives of the second of two joined sums that the first one's do not do."""
    return () if [_what(t) for t in first] == [_what(t) for t in second] else second


def _what(one: Transfer) -> tuple:
    return one.kind, one.axes, one.bytes, one.times, one.ring


def joint_costs(
    first: Sequence[Sequence[Transfer]], second: Sequence[Sequence[Transfer]], network: Network
) -> NDArray[np.float64]:
    """Seconds of the second sum's collectives, per strategy of the first and of the second op."""
    mine, theirs = ([tuple(map(_what, found)) for found in side] for side in (second, first))
    prices = {found: network.price(side) for found, side in zip(mine, second, strict=True)}
    kinds = {found: number for number, found in enumerate(dict.fromkeys((*mine, *theirs)))}
    columns = np.array([kinds[found] for found in mine])
    rows = np.array([kinds[found] for found in theirs])
    return np.where(rows[:, None] == columns, 0.0, np.array([prices[found] for found in mine]))
