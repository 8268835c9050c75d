"""Mini-buckets: elimination that keeps within a budget of entries per table, for a lower bound.

Dechter and Rish, "Mini-buckets: a general scheme for bounded inference", JACM 2003. With F(v) the tables that
name v, too many to be added up, and F_1 .. F_k a partition of them into parts that can be,

    min_a sum_F f(a, .)   >=   sum_j min_a sum_(F_j) f(a, .)

and the right side is what is sent on. What v costs may be divided among the parts at will; it is divided so
that all of them have the same min-marginals, which makes the sum of their minima largest on average (moment
matching: Flerova, Ihler, Dechter and Otten, DISCML 2011):

    m_j[a]   =  min over the others of  sum_(F_j) f(a, .)
    cost_j   =  (cost + sum_i m_i) / k  -  m_j

A node whose tables fit is eliminated exactly, so with a large budget the bound is the minimum. Going back
gives a choice. Work: n k entries.
"""

import math
from collections.abc import Sequence

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.elimination import (
    Bucket,
    Eliminated,
    Elimination,
    TooLarge,
    bucket_of,
    go_back,
    send,
    take_out,
)
from planner.solvers.factors import Factor, Map, count, meet, spread
from planner.solvers.interning import Interner
from planner.solvers.network import Network
from planner.solvers.orders import Order
from planner.solvers.record import ROUNDING

ENTRIES = 1e6  # of one table


def bounded(
    network: Network, order: Order, intern: Interner, *, entries: float = ENTRIES, deadline: float = np.inf
) -> Eliminated:
    """A lower bound of a network's minimum, as `value`, and a choice close to it. entries: of one step's
    table, at most, save where a single factor has more. Raises OutOfTime when time.monotonic() passes
    `deadline`."""
    state = Elimination(network, intern)
    split = False
    for v in order.nodes:
        state.most = state.entries + entries
        try:
            take_out(state, v, deadline)
        except TooLarge:
            state.most = np.inf
            _take_out_in_parts(state, v, entries, deadline)
            split = True
    choice = go_back(state.buckets, [0] * len(network.unary))
    value = sum(state.least.values())
    # What is divided is no longer on the network's grid, and the sums of it are rounded.
    if split and math.isfinite(value):
        value -= ROUNDING * sum(map(abs, state.least.values()))
    return Eliminated(value, choice, state.entries, state.products, state.recalled)


def _take_out_in_parts(state: Elimination, v: int, entries: float, deadline: float) -> None:
    bucket = bucket_of(state, v)
    parts = _partition(bucket, entries, state.intern)
    marginals = [_marginals(bucket, part, state.intern) for part in parts]
    shared = (bucket.costs + sum(marginals)) / len(parts)
    least = 0.0
    for part, marginal in zip(parts, marginals, strict=True):
        with np.errstate(invalid="ignore"):
            costs = np.where(np.isinf(shared), np.inf, shared - marginal)
        least += send(state, Bucket(v, state.intern(costs), tuple(part)), deadline)
    state.least[v] = least
    state.buckets.append(bucket)


def _partition(bucket: Bucket, entries: float, intern: Interner) -> list[list[Factor]]:
    """The factors in parts whose sums have at most `entries`, the largest first, each into the first part
    that has room."""
    parts: list[list[Factor]] = []
    for factor in sorted(bucket.factors, key=lambda one: (-one.table.size, one.scope)):
        for part in parts:
            if _size([*part, factor], intern) <= entries:
                part.append(factor)
                break
        else:
            parts.append([factor])
    return parts


def _size(factors: Sequence[Factor], intern: Interner) -> float:
    return math.prod(float(count(meet(maps, intern)[0], intern)) for maps in _maps(factors).values())


def _maps(factors: Sequence[Factor]) -> dict[int, list[Map]]:
    """The maps of every node that the factors name."""
    maps: dict[int, list[Map]] = {}
    for factor in factors:
        for w, one in zip(factor.scope, factor.maps, strict=True):
            maps.setdefault(w, []).append(one)
    return maps


def _marginals(bucket: Bucket, part: Sequence[Factor], intern: Interner) -> Floats:
    """For each strategy of the node, the least that these factors add up to."""
    maps = _maps(part)
    axes = [bucket.node, *(w for w in sorted(maps) if w != bucket.node)]
    met = {w: meet(maps[w], intern) for w in axes}
    finer = [{id(one): to for one, to in zip(maps[w], met[w][1], strict=True)} for w in axes]
    total = sum(spread(factor, axes, finer) for factor in part)
    return np.asarray(total).min(axis=tuple(range(1, len(axes))))[met[bucket.node][0]]
