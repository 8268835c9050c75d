"""Network: a problem as the solvers use it, one table per node and one per joined pair of nodes.

    minimise    sum_v unary[v][x_v]  +  sum_(u < w) pairs[u, w][x_u, x_w]

Parallel edges are added up. Prices on memory enter the tables: the Lagrangian of the memory limit is

    L(prices) = min_x  cost(x) + sum_t prices_t (usage_t(x) - limit)

and a usage alive during [first, last) adds `bytes * sum(prices[first:last])` to the table it belongs to.

Every entry is rounded to a multiple of a power of two that is so small against the sum of all tables that
each later sum is exact in float64 (whole numbers with a sum below 2^53 stay as they are). So equal parts of
a network give bitwise equal results, in whatever order they are added, and equal results are interned.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Problem

MANTISSA_BITS = 52


class Interner:
    """Makes equal arrays one object. Keeps what it has seen alive, so that an `id` stays a key."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Floats, Floats]] = {}
        self._by_content: dict[tuple[tuple[int, ...], bytes], Floats] = {}
        self._made: dict[object, Floats] = {}

    def __call__(self, table: Floats) -> Floats:
        """The one array equal to `table`."""
        known = self._by_id.get(id(table))
        if known is not None:
            return known[1]
        content = np.ascontiguousarray(table, dtype=np.float64)
        one = self._by_content.setdefault((content.shape, _digest(content)), content)
        self._by_id[id(table)] = (table, one)
        self._by_id[id(one)] = (one, one)
        return one

    def recall(self, key: object) -> Floats | None:
        """What was kept under `key`, whose ids must be of interned arrays."""
        return self._made.get(key)

    def keep(self, key: object, table: Floats) -> Floats:
        """Interns `table` and keeps it under `key`."""
        one = self(table)
        self._made[key] = one
        return one


def _digest(table: Floats) -> bytes:
    raw = table.reshape(-1).view(np.uint8)
    return raw.tobytes() if raw.size <= 64 else hashlib.blake2b(raw.data, digest_size=32).digest()


@dataclasses.dataclass(frozen=True)
class Network:
    """unary[v]: shape (K_v,). pairs[u, w], u < w: shape (K_u, K_w). Equal tables are the same object."""

    unary: tuple[Floats, ...]
    pairs: Mapping[tuple[int, int], Floats]

    @property
    def sizes(self) -> tuple[int, ...]:
        """K_v of every node."""
        return tuple(len(costs) for costs in self.unary)


def neighbours_of(network: Network) -> list[set[int]]:
    """The nodes each node is joined to."""
    near: list[set[int]] = [set() for _ in network.unary]
    for u, w in network.pairs:
        near[u].add(w)
        near[w].add(u)
    return near


def value_of(network: Network, choice: Sequence[int]) -> float:
    """The sum that is minimised, at one choice."""
    nodes = sum(float(costs[c]) for costs, c in zip(network.unary, choice, strict=True))
    return nodes + sum(float(table[choice[u], choice[w]]) for (u, w), table in network.pairs.items())


def network_of(problem: Problem, intern: Interner, prices: Floats | None = None) -> Network:
    """The network of a problem, memory priced at `prices` (per byte and time, shape (horizon,); None: free)."""
    unary: list[list[tuple[Floats, float]]] = [[(costs, 1.0)] for costs in problem.node_costs]
    edges: list[list[tuple[Floats, float]]] = [[(table, 1.0)] for table in problem.edge_costs]
    if prices is not None:
        until = np.concatenate([[0.0], np.cumsum(prices)])
        for terms, usages in ((unary, problem.node_usages), (edges, problem.edge_usages)):
            for usage in usages:
                price = float(until[usage.last] - until[usage.first]) if usage.last > usage.first else 0.0
                if price > 0.0:
                    terms[usage.of].append((usage.bytes, price))
    pairs: dict[tuple[int, int], list[tuple[Floats, float]]] = {}
    for (u, w), terms in zip(problem.edges, edges, strict=True):
        if u == w:
            unary[u].extend((intern(np.diagonal(table).copy()), factor) for table, factor in terms)
        elif u < w:
            pairs.setdefault((u, w), []).extend(terms)
        else:
            pairs.setdefault((w, u), []).extend(
                (_transposed(table, intern), factor) for table, factor in terms
            )
    summed = [_weighted_sum(terms, intern) for terms in (*unary, *pairs.values())]
    tables = _on_grid(summed, intern)
    count = len(unary)
    return Network(tuple(tables[:count]), dict(zip(pairs, tables[count:], strict=True)))


def restricted(network: Network, kept: Sequence[NDArray[np.intp]], intern: Interner) -> Network:
    """The network with only the strategies `kept[v]` of each node, in that order."""
    names = [k.tobytes() for k in kept]
    whole = [len(k) == len(costs) for k, costs in zip(kept, network.unary, strict=True)]
    unary = [costs if whole[v] else intern(costs[kept[v]]) for v, costs in enumerate(network.unary)]
    pairs = {}
    for (u, w), table in network.pairs.items():
        if whole[u] and whole[w]:
            pairs[u, w] = table
            continue
        key = ("restricted", id(table), names[u], names[w])
        found = intern.recall(key)
        pairs[u, w] = intern.keep(key, table[np.ix_(kept[u], kept[w])]) if found is None else found
    return Network(tuple(unary), pairs)


def _transposed(table: Floats, intern: Interner) -> Floats:
    one = intern(table)
    found = intern.recall(("transposed", id(one)))
    return intern.keep(("transposed", id(one)), one.T) if found is None else found


def _weighted_sum(terms: list[tuple[Floats, float]], intern: Interner) -> Floats:
    parts = sorted(
        ((intern(table), factor) for table, factor in terms), key=lambda part: (id(part[0]), part[1])
    )
    if len(parts) == 1 and parts[0][1] == 1.0:
        return parts[0][0]
    key = ("sum", *((id(table), factor) for table, factor in parts))
    found = intern.recall(key)
    if found is not None:
        return found
    # Ids order the key only; the sum itself runs in the order given, so that it is the same on every run.
    total = sum((intern(table) * factor for table, factor in terms[1:]), intern(terms[0][0]) * terms[0][1])
    return intern.keep(key, total)


def _on_grid(tables: list[Floats], intern: Interner) -> list[Floats]:
    largest = {id(table): _largest(table) for table in {id(t): t for t in tables}.values()}
    total = sum(largest[id(table)] for table in tables)
    if total == 0.0:
        return tables
    step = 2.0 ** (np.frexp(total)[1] - MANTISSA_BITS)
    rounded: dict[int, Floats] = {}
    for table in tables:
        if id(table) not in rounded:
            near = np.round(table / step) * step
            rounded[id(table)] = table if np.array_equal(near, table) else intern(near)
    return [rounded[id(table)] for table in tables]


def _largest(table: Floats) -> float:
    finite = table[np.isfinite(table)]
    return float(np.abs(finite).max(initial=0.0))
