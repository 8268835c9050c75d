"""Exact min-sum elimination: PaSE's dynamic programme over dependent sets, on dense tables.

PaSE (Elango, IPDPS 2021, section III, figure 4, theorems 1 and 2) orders the layers v_1 .. v_n and keeps, for
every assignment of the dependent set D(i) (the later nodes that v_1 .. v_i touch through v_i), the least cost
of everything before. That is variable elimination in the (min, +) semiring: with F(v) the tables that name v,

    D(v)       =  the other nodes named by F(v)
    m_v[s]     =  min_a  sum_{f in F(v)} f[a, s restricted to f]            for every assignment s of D(v)
    F          =  F - F(v) + {m_v}

When all nodes are gone what is left is the minimum. Going back, x_v = argmin_a of the same sum at the choices
already made. Work: sum_v prod(K of D(v) and v), at most n K^(width + 1); a node of degree 1 or 2 is a fold of
K^2 or K^3. The order is free (see `planner.solvers.orders`).

Repeated layers: tables are interned, each m_v has its minimum taken off (kept as a constant), and the step
that makes m_v from the same tables in the same layout is done once. Sums are exact (see
`planner.solvers.network`), so the messages of identical layers become identical, not merely close.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from planner.cost.problem import Choice, Floats, Problem, cost_of, peak_of
from planner.solvers.network import Interner, Network, neighbours_of, network_of
from planner.solvers.orders import Order, best_order

BLOCK = 1 << 16  # entries that stay in a core's cache while they are added and compared
LARGEST_TABLE = 6e7  # entries of one kept table: half a gigabyte


@dataclasses.dataclass(frozen=True)
class Eliminated:
    """value: the minimum. choice: where it is reached. entries: table entries computed, repeats not counted;
    products: elimination steps computed; recalled: steps that were known already."""

    value: float
    choice: tuple[int, ...]
    entries: int
    products: int
    recalled: int


class OutOfTime(Exception):
    """The deadline passed before the elimination was complete."""


@dataclasses.dataclass(frozen=True)
class _Factor:
    scope: tuple[int, ...]
    table: Floats


def solve(problem: Problem, *, seconds: float = 60.0, seed: int = 0) -> Choice:
    """The exact optimum without the memory limit; says so if the limit is broken, the tables are too large
    or the time is up. `seed` is not used: there is nothing random."""
    del seed
    network = network_of(problem, Interner())
    order = best_order(neighbours_of(network), network.sizes)
    cheapest = sum(float(table.min()) for table in (*network.unary, *network.pairs.values()))
    greedy = tuple(int(costs.argmin()) for costs in network.unary)
    if order.largest > LARGEST_TABLE:
        return _answer(problem, greedy, cheapest, f"elimination needs a table of {order.largest:.1e} entries")
    try:
        found = eliminate(network, order, deadline=time.monotonic() + seconds)
    except (OutOfTime, KeyboardInterrupt):
        return _answer(problem, greedy, cheapest, f"not done in {seconds:g} s")
    return _answer(problem, found.choice, cost_of(problem, found.choice), "exact")


def _answer(problem: Problem, choice: tuple[int, ...], bound: float, stopped: str) -> Choice:
    cost, peak = cost_of(problem, choice), peak_of(problem, choice)
    if peak > problem.usage_limit:
        stopped += ", without the memory limit, which this choice exceeds"
    return Choice(choice, cost, min(bound, cost), peak, stopped)


def eliminate(
    network: Network, order: Order, *, intern: Interner | None = None, deadline: float = np.inf
) -> Eliminated:
    """The minimum of a network and where it is. Raises OutOfTime when time.monotonic() passes `deadline`."""
    intern = intern or Interner()
    factors: dict[int, dict[tuple[int, ...], _Factor]] = {v: {} for v in order.nodes}
    for v, costs in enumerate(network.unary):
        _insert(factors, _Factor((v,), intern(costs)), intern)
    for pair, table in network.pairs.items():
        _insert(factors, _Factor(pair, intern(table)), intern)
    buckets: list[tuple[int, list[_Factor]]] = []
    value, entries, products, recalled = 0.0, 0, 0, 0
    for v in order.nodes:
        bucket = [factors[v][scope] for scope in sorted(factors[v])]
        for factor in bucket:
            for w in factor.scope:
                factors[w].pop(factor.scope, None)
        buckets.append((v, bucket))
        scope = tuple(sorted({w for factor in bucket for w in factor.scope} - {v}))
        layout = {w: axis for axis, w in enumerate((v, *scope))}
        key = ("min", *((id(f.table), *(layout[w] for w in f.scope)) for f in bucket))
        found, least = intern.recall(key), intern.recall((key, "least"))
        if found is None or least is None:
            sizes = [len(network.unary[w]) for w in (v, *scope)]
            message = min_plus([_spread(f, layout) for f in bucket], sizes, deadline)
            entries, products = entries + int(np.prod(sizes, dtype=float)), products + 1
            low = float(message.min())
            least = intern.keep((key, "least"), np.array([low]))
            found = intern.keep(key, message - low if np.isfinite(low) else message)
        else:
            recalled += 1
        value += float(least[0])
        if scope:
            _insert(factors, _Factor(scope, found), intern)
    return Eliminated(value, _go_back(buckets, len(network.unary)), entries, products, recalled)


def _insert(factors: dict[int, dict[tuple[int, ...], _Factor]], factor: _Factor, intern: Interner) -> None:
    known = factors[factor.scope[0]].get(factor.scope)
    if known is not None:
        key = ("plus", *sorted((id(known.table), id(factor.table))))
        total = intern.recall(key)
        total = intern.keep(key, known.table + factor.table) if total is None else total
        factor = _Factor(factor.scope, total)
    for v in factor.scope:
        factors[v][factor.scope] = factor


def _spread(factor: _Factor, layout: dict[int, int]) -> Floats:
    """The factor's table with one axis per variable of `layout`, of extent one where it does not name it."""
    axes = sorted(range(len(factor.scope)), key=lambda axis: layout[factor.scope[axis]])
    shape = [1] * len(layout)
    for axis, w in enumerate(factor.scope):
        shape[layout[w]] = factor.table.shape[axis]
    return np.ascontiguousarray(factor.table.transpose(axes)).reshape(shape)


def _go_back(buckets: list[tuple[int, list[_Factor]]], count: int) -> tuple[int, ...]:
    choice = [0] * count
    for v, bucket in reversed(buckets):
        total = sum(f.table[tuple(slice(None) if w == v else choice[w] for w in f.scope)] for f in bucket)
        choice[v] = int(np.argmin(total))
    return tuple(choice)


def min_plus(parts: Sequence[Floats], sizes: Sequence[int], deadline: float = np.inf) -> Floats:
    """out[s] = min_a sum of parts[a, s], all parts with len(sizes) axes, of extent one where they do not vary.

    The full sum is never built: blocks of s are kept in cache while a runs."""
    parts = _absorbed(parts)
    rest = tuple(sizes[1:])
    if int(np.prod(sizes, dtype=float)) <= BLOCK:
        return np.ascontiguousarray(_summed(parts).min(axis=0)) + np.zeros(rest)
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
            if all(a == 1 or a == b for a, b in zip(part.shape, left[later].shape, strict=True)):
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
