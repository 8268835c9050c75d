"""Network: a problem as the solvers use it, one table per node and one per joined pair of nodes.

    minimise    sum_v unary[v][x_v]  +  sum_(u < w) pairs[u, w](x_u, x_w)

Parallel edges are added up. Prices on memory enter the tables: the Lagrangian of the memory limit is

    L(prices) = min_x  cost(x) + sum_t prices_t (usage_t(x) - limit)

and a usage alive during [first, last) adds `bytes * sum(prices[first:last])` to the table it belongs to.

Every entry is rounded to a multiple of a power of two that is so small against the sum of all tables that
each later sum that matters is exact in float64 (whole numbers with a sum below 2^52 stay as they are). So
equal parts of a network give bitwise equal results, in whatever order they are added, and these are interned.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Problem
from planner.solvers.factors import Factor, Map, pair_factor, restricted_factor
from planner.solvers.interning import Interner

MANTISSA_BITS = 52
Term = tuple[Floats, float]  # a table and what it is multiplied by


@dataclasses.dataclass(frozen=True)
class Network:
    """unary[v]: shape (K_v,). pairs[u, w], u < w: the factor over both. Equal tables are the same object.
    rounding: by how much the value of any choice may differ from that of the tables before rounding."""

    unary: tuple[Floats, ...]
    pairs: Mapping[tuple[int, int], Factor]
    rounding: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """K_v of every node."""
        return tuple(len(costs) for costs in self.unary)


def value_of(network: Network, choice: Sequence[int]) -> float:
    """The sum that is minimised, at one choice."""
    nodes = sum(float(costs[c]) for costs, c in zip(network.unary, choice, strict=True))
    return nodes + sum(
        float(f.table[f.maps[0][choice[u]], f.maps[1][choice[w]]]) for (u, w), f in network.pairs.items()
    )


def network_of(problem: Problem, intern: Interner, prices: Floats | None = None) -> Network:
    """The network of a problem, memory at `prices` per byte and time (shape (horizon,); None: free)."""
    unary: list[list[Term]] = [[(intern(costs), 1.0)] for costs in problem.node_costs]
    edges: list[list[Term]] = [[(intern(table), 1.0)] for table in problem.edge_costs]
    if prices is not None:
        until = np.concatenate([[0.0], np.cumsum(prices)])
        for terms, usages in ((unary, problem.node_usages), (edges, problem.edge_usages)):
            for usage in usages:
                if usage.last > usage.first and until[usage.last] > until[usage.first]:
                    terms[usage.of].append(
                        (intern(usage.bytes), float(until[usage.last] - until[usage.first]))
                    )
    pairs: dict[tuple[int, int], list[Term]] = {}
    for (u, w), terms in zip(problem.edges, edges, strict=True):
        if u == w:
            unary[u].extend((intern(np.diagonal(table).copy()), factor) for table, factor in terms)
        elif u < w:
            pairs.setdefault((u, w), []).extend(terms)
        else:
            pairs.setdefault((w, u), []).extend(
                (_transposed(table, intern), factor) for table, factor in terms
            )
    raw = [_weighted_sum(terms, intern) for terms in (*unary, *pairs.values())]
    count = len(unary)
    first = [int(costs.argmin()) for costs in raw[:count]]
    joined = zip(pairs, raw[count:], strict=True)
    reached = sum(float(costs.min()) for costs in raw[:count]) + sum(
        t[first[u], first[w]] for (u, w), t in joined
    )
    tables, rounding = _on_grid(raw, 4.0 * float(reached), intern)
    factors = (pair_factor(pair, table, intern) for pair, table in zip(pairs, tables[count:], strict=True))
    return _joined(tables[:count], factors, rounding, intern)


def restricted(network: Network, kept: Sequence[NDArray[np.intp]], intern: Interner) -> Network:
    """The network with only the strategies `kept[v]` of each node, in that order."""
    names = [intern(k) for k in kept]
    unary = [intern(costs[k]) for k, costs in zip(kept, network.unary, strict=True)]
    factors = (
        restricted_factor(whole, (names[u], names[w]), intern) for (u, w), whole in network.pairs.items()
    )
    return _joined(unary, factors, network.rounding, intern)


def _joined(unary: list[Floats], factors: Iterable[Factor], rounding: float, intern: Interner) -> Network:
    """The network of these tables; a factor that depends on one node only is added to its costs."""
    pairs: dict[tuple[int, int], Factor] = {}
    for factor in factors:
        u, w = factor.scope
        if factor.table.shape[1] == 1:
            unary[u] = _with_row(unary[u], factor.table[:, 0], factor.maps[0], intern)
        elif factor.table.shape[0] == 1:
            unary[w] = _with_row(unary[w], factor.table[0], factor.maps[1], intern)
        else:
            pairs[u, w] = factor
    return Network(tuple(unary), pairs, rounding)


def _with_row(costs: Floats, row: Floats, classes: Map, intern: Interner) -> Floats:
    row = intern(row.copy())
    return intern.recall(("with row", id(costs), id(row), id(classes)), lambda: intern(costs + row[classes]))


def _transposed(table: Floats, intern: Interner) -> Floats:
    return intern.recall(("transposed", id(table)), lambda: intern(table.T))


def _weighted_sum(terms: list[Term], intern: Interner) -> Floats:
    first, factor = terms[0]
    if len(terms) == 1 and factor == 1.0:
        return first
    key = ("weighted", *((id(table), factor) for table, factor in terms))
    return intern.recall(key, lambda: intern(sum((t * f for t, f in terms[1:]), first * factor)))


def _on_grid(tables: list[Floats], ceiling: float, intern: Interner) -> tuple[list[Floats], float]:
    """The rounded tables, and the most that all the roundings of one choice add up to. Sums are exact up to
    `ceiling`, or to the sum of all tables; what costs more than a choice that is known is in no optimum."""
    distinct = {id(table): table for table in tables}
    largest = {name: _largest(table) for name, table in distinct.items()}
    total = min(sum(largest[id(table)] for table in tables), ceiling)
    if total <= 0.0:
        return tables, 0.0
    step = float(2.0 ** (np.frexp(total)[1] - MANTISSA_BITS))
    near = {name: np.round(table / step) * step for name, table in distinct.items()}
    moved = {name for name, table in distinct.items() if not np.array_equal(near[name], table)}
    rounded = {name: intern(near[name]) if name in moved else table for name, table in distinct.items()}
    return [rounded[id(table)] for table in tables], step / 2 * sum(id(table) in moved for table in tables)


def _largest(table: Floats) -> float:
    finite = table[np.isfinite(table)]
    return float(np.abs(finite).max(initial=0.0))
