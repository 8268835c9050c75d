"""Exact folds: nodes of degree 0, 1 or 2 are eliminated where that is cheap, and a smaller network is left.

Folding a node of degree 2 leaves one table between its neighbours, so what remains is a network again; in
train steps half of all nodes go this way, and any bound on the rest is a tighter one.
"""

import dataclasses
import heapq
import math

import numpy as np

from planner.solvers.elimination import Bucket, Elimination, go_back, take_out
from planner.solvers.factors import count, meet
from planner.solvers.interning import Interner
from planner.solvers.network import Network

FOLD_ENTRIES = 2e6  # of one fold: a few milliseconds


@dataclasses.dataclass(frozen=True)
class Folded:
    """network: what is left; a node that went has one strategy, which costs what its fold took off."""

    network: Network
    buckets: tuple[Bucket, ...]


def fold(
    network: Network, intern: Interner, *, entries: float = FOLD_ENTRIES, deadline: float = np.inf
) -> Folded:
    """Eliminates all nodes of degree 2 or less whose fold computes at most `entries`; lowest degree first."""
    state = Elimination(network, intern)
    heap = [(_degree(state, v), v) for v in range(len(network.unary))]
    heapq.heapify(heap)
    while heap:
        degree, v = heapq.heappop(heap)
        if v in state.least or degree > 2 or degree != _degree(state, v) or _work(state, v) > entries:
            continue
        others = sorted({w for scope in state.factors[v] for w in scope} - {v})
        take_out(state, v, deadline)
        for w in others:
            heapq.heappush(heap, (_degree(state, w), w))
    unary = list(state.unary)
    for v, least in state.least.items():
        unary[v] = intern(np.array([least]))
    pairs = {scope: f for of_node in state.factors for scope, f in of_node.items() if len(scope) == 2}
    ordered = {(u, w): pairs[u, w] for u, w in sorted(pairs)}
    return Folded(Network(tuple(unary), ordered, network.rounding), tuple(state.buckets))


def unfold(folded: Folded, choice: tuple[int, ...]) -> tuple[int, ...]:
    """The choice of all nodes, given one of the network that is left."""
    return go_back(folded.buckets, list(choice))


def _degree(state: Elimination, v: int) -> int:
    return len({w for scope in state.factors[v] for w in scope} - {v})


def _work(state: Elimination, v: int) -> float:
    sizes = []
    for w in {w for scope in state.factors[v] for w in scope}:
        maps = [m for f in state.factors[v].values() for x, m in zip(f.scope, f.maps, strict=True) if x == w]
        sizes.append(float(count(meet(maps, state.intern)[0], state.intern)))
    return math.prod(sizes)
