"""Exact min-sum elimination: PaSE's dynamic programme over dependent sets, on dense tables.

PaSE (Elango, IPDPS 2021, section III, figure 4, theorems 1 and 2) orders the layers v_1 .. v_n and keeps, for
every assignment of the dependent set D(i) (the later nodes that v_1 .. v_i touch through v_i), the least cost
of everything before. That is variable elimination in the (min, +) semiring: with F(v) the tables that name v,

    D(v)       =  the other nodes named by F(v)
    m_v[s]     =  min_a  sum_{f in F(v)} f[a, s restricted to f]            for every assignment s of D(v)
    F          =  F - F(v) + {m_v}

When all nodes are gone what is left is the minimum. Going back, x_v = argmin_a of the same sum at the choices
already made. Work: sum_v prod(K of D(v) and v), at most n K^(width + 1), K in classes of strategies that the
tables tell apart (`planner.solvers.factors`); a node of degree 1 or 2 is a fold of K^2 or K^3. The order is
free (`planner.solvers.orders`).

Repeated layers: tables are interned, each m_v has its minimum taken off (kept as a constant), and the step
that makes m_v from the same tables in the same layout is done once. Sums are exact (see the network module),
so the messages of identical layers become identical, not merely close.
"""

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np

from planner.cost.problem import Choice, Floats, Problem, cost_of, peak_of
from planner.solvers.factors import Factor, Map, added, count, least_per_class, meet, spread
from planner.solvers.interning import Interner
from planner.solvers.minplus import OutOfTime, min_plus, why
from planner.solvers.network import Network, network_of
from planner.solvers.orders import Order, best_order, greedy_order

LARGEST_TABLE = 6e7  # entries of one kept table: half a gigabyte
MOST_ENTRIES = 1e11  # of all distinct steps together: some minutes


class TooLarge(Exception):
    """The tables have more entries than was allowed."""


@dataclasses.dataclass(frozen=True)
class Eliminated:
    """value: the minimum. choice: where it is reached. entries: table entries computed, repeats not counted;
    products: elimination steps computed; recalled: steps that were known already."""

    value: float
    choice: tuple[int, ...]
    entries: float
    products: int
    recalled: int


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A node that was eliminated, with the tables that named it then."""

    node: int
    costs: Floats
    factors: tuple[Factor, ...]


class Elimination:
    """A network while nodes are taken out of it. unary: of the nodes left; factors[v]: those that name v, by
    scope; buckets: of the nodes gone, in order; least[v]: the minimum that was taken off with v; entries:
    what was computed, at most `most`."""

    def __init__(self, network: Network, intern: Interner, most: float = np.inf) -> None:
        self.intern = intern
        self.most = most
        self.unary = list(network.unary)
        self.factors: list[dict[tuple[int, ...], Factor]] = [{} for _ in network.unary]
        for factor in network.pairs.values():
            _insert(self.factors, factor, intern)
        self.buckets: list[Bucket] = []
        self.least: dict[int, float] = {}
        self.entries = 0.0
        self.products = self.recalled = 0


def solve(problem: Problem, *, seconds: float = 60.0, seed: int = 0) -> Choice:
    """The exact optimum without the memory limit, or, if its tables are too large, a choice and a bound by
    mini-buckets; says so if the limit is broken or the time is up. `seed` is not used: nothing is random."""
    del seed
    deadline = time.monotonic() + seconds
    intern = Interner()
    network = network_of(problem, intern)
    cheapest = simple_bound(network)
    greedy = tuple(int(costs.argmin()) for costs in network.unary)
    try:
        order = best_order(network, intern, most=MOST_ENTRIES, deadline=deadline)
        if order is None or order.largest > LARGEST_TABLE:
            return _in_parts(problem, network, intern, deadline)
        found = eliminate(network, order, intern, deadline=deadline)
    except (OutOfTime, KeyboardInterrupt) as error:
        return _answer(problem, greedy, cheapest, f"not done: {why(error)}")
    return _answer(problem, found.choice, cost_of(problem, found.choice), "exact")


def _in_parts(problem: Problem, network: Network, intern: Interner, deadline: float) -> Choice:
    """A choice and a bound by mini-buckets."""
    from planner.solvers.minibucket import bounded  # which builds on this module

    order = greedy_order(network, intern, "weight", deadline=deadline)
    assert order is not None  # no limit was given
    found = bounded(network, order, intern, deadline=deadline)
    stopped = f"its tables have over {LARGEST_TABLE:.0e} entries; bounded by mini-buckets"
    return _answer(problem, found.choice, found.value - network.rounding, stopped)


def _answer(problem: Problem, choice: tuple[int, ...], bound: float, stopped: str) -> Choice:
    cost, peak = cost_of(problem, choice), peak_of(problem, choice)
    if not np.isfinite(cost) and stopped == "exact":
        stopped = "no choice is allowed: every choice has a forbidden pair"
    if peak > problem.usage_limit:
        stopped += ", without the memory limit, which this choice exceeds"
    return Choice(choice, cost, min(bound, cost), peak, stopped)


def simple_bound(network: Network) -> float:
    """The sum of all tables' minima: a lower bound."""
    return sum(float(table.min()) for table in (*network.unary, *(f.table for f in network.pairs.values())))


def eliminate(
    network: Network, order: Order, intern: Interner, *, most: float = np.inf, deadline: float = np.inf
) -> Eliminated:
    """The minimum of a network and where it is. Raises OutOfTime when time.monotonic() passes `deadline`, and
    TooLarge before it computes over `most` entries."""
    state = Elimination(network, intern, most)
    for v in order.nodes:
        take_out(state, v, deadline)
    choice = go_back(state.buckets, [0] * len(network.unary))
    return Eliminated(sum(state.least.values()), choice, state.entries, state.products, state.recalled)


def take_out(state: Elimination, v: int, deadline: float = np.inf) -> None:
    """Eliminates one node. Raises OutOfTime or TooLarge, and leaves the state as it was."""
    if time.monotonic() > deadline:  # steps that are recalled take time as well, where there are many
        raise OutOfTime
    bucket = bucket_of(state, v)
    state.least[v] = send(state, bucket, deadline)
    state.buckets.append(bucket)


def bucket_of(state: Elimination, v: int) -> Bucket:
    """All that names a node now."""
    return Bucket(v, state.unary[v], tuple(state.factors[v][scope] for scope in sorted(state.factors[v])))


def send(state: Elimination, bucket: Bucket, deadline: float = np.inf) -> float:
    """Puts the message of a bucket in the place of its factors; the minimum that was taken off it. Raises
    OutOfTime or TooLarge, and leaves the state as it was."""
    scope, key = _layout(bucket)
    known = state.intern.knows(key)
    maps, message, least, size = state.intern.recall(
        key, lambda: _message(bucket, scope, state.intern, state.most - state.entries, deadline)
    )
    for factor in bucket.factors:
        for w in factor.scope:
            state.factors[w].pop(factor.scope, None)
    state.recalled, state.products = state.recalled + known, state.products + (not known)
    state.entries += 0.0 if known else size
    if len(scope) == 1:
        w = scope[0]
        sum_key = ("unary", id(state.unary[w]), id(message), id(maps[0]))
        state.unary[w] = state.intern.recall(sum_key, lambda: state.intern(state.unary[w] + message[maps[0]]))
    elif scope:
        _insert(state.factors, Factor(scope, maps, message), state.intern)
    return least


def go_back(buckets: Sequence[Bucket], choice: list[int]) -> tuple[int, ...]:
    """Fills in the choices of eliminated nodes, last one first, given those of all other nodes."""
    for bucket in reversed(buckets):
        total = bucket.costs
        for f in bucket.factors:
            at = tuple(m if w == bucket.node else m[choice[w]] for w, m in zip(f.scope, f.maps, strict=True))
            total = total + f.table[at]
        choice[bucket.node] = int(np.argmin(total))
    return tuple(choice)


def _layout(bucket: Bucket) -> tuple[tuple[int, ...], object]:
    """D(v), and a key that is equal for buckets of the same tables in the same layout."""
    scope = tuple(sorted({w for factor in bucket.factors for w in factor.scope} - {bucket.node}))
    place = {w: axis for axis, w in enumerate((bucket.node, *scope))}
    names = [
        (id(f.table), *((place[w], id(m)) for w, m in zip(f.scope, f.maps, strict=True)))
        for f in bucket.factors
    ]
    return scope, ("message", id(bucket.costs), *names)


def _message(
    bucket: Bucket, scope: tuple[int, ...], intern: Interner, most: float, deadline: float
) -> tuple[tuple[Map, ...], Floats, float, float]:
    """The maps and the table of m_v with its minimum taken off, that minimum, and the entries computed."""
    axes = (bucket.node, *scope)
    classes: list[Map] = []
    finer: list[dict[int, Map]] = []
    for w in axes:
        maps = [m for f in bucket.factors for x, m in zip(f.scope, f.maps, strict=True) if x == w]
        if not maps:
            least = float(bucket.costs.min())
            return (), intern(np.zeros(())), least, float(len(bucket.costs))
        met, to = meet(maps, intern)
        classes.append(met)
        finer.append({id(one): into for one, into in zip(maps, to, strict=True)})
    sizes = [count(one, intern) for one in classes]
    size = math.prod(map(float, sizes))
    if size > most:
        raise TooLarge
    costs = least_per_class(bucket.costs, classes[0], sizes[0]).reshape(-1, *(1 for _ in scope))
    parts = [spread(factor, axes, finer) for factor in bucket.factors]
    message = min_plus([costs, *parts], sizes, deadline)
    least = float(message.min())
    if np.isfinite(least):
        message = message - least
    return tuple(classes[1:]), intern(message), least, size


def _insert(factors: Sequence[dict[tuple[int, ...], Factor]], factor: Factor, intern: Interner) -> None:
    known = factors[factor.scope[0]].get(factor.scope)
    if known is not None:
        factor = added(known, factor, intern)
    for v in factor.scope:
        factors[v][factor.scope] = factor
