"""Closing the gap that the multipliers leave between the best choice that fits and the bound.

relink     a cheaper choice that does not fit differs from the best one in some nodes; each connected group
           of them is switched if that saves cost and still fits, the largest saving first
descend    single nodes are switched while that saves cost and fits
settle     with L the bound at the best prices, a strategy whose excess in that network is more than
           V - L is in no better choice; if few enough are left, HiGHS solves what is left exactly
"""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Choice, Floats, Problem, Usage
from planner.solvers import ilp
from planner.solvers.bounds import Messages, walk
from planner.solvers.interning import Interner
from planner.solvers.ledger import Ledger, apply, cost_change, fits
from planner.solvers.network import network_of
from planner.solvers.record import Record, note

WALKS = 40
SLOW = 0.01  # a walk that closes less of the gap is the last
SWEEPS = 4
MOST_COLUMNS = 30_000  # of an integer programme that is tried
HIGHS_SHARE = 0.5  # of the time that is left


def relink(record: Record) -> None:
    """Notes the best choice that fits with what it can take from the last cheaper one, which does not."""
    best = record.best
    if best is not None:
        other = next((one for one in reversed(record.seen) if one.cost < best.cost), None)
        if other is not None:
            note(record, relinked(record.problem, best.choice, other.choice))


def improve(record: Record, prices: Floats, deadline: float) -> None:
    """Narrows the gap of a record that has a choice that fits. prices: those of the highest bound."""
    if record.best is None:
        return
    kept, bound = _kept(record.problem, prices, record.best.cost, deadline)
    note(record, descended(record.problem, record.best.choice, kept, deadline), bound)
    kept = [np.union1d(k, [c]) for k, c in zip(kept, record.best.choice, strict=True)]
    found = by_programme(narrowed(record.problem, kept), deadline)
    if found is not None:
        note(record, tuple(int(k[c]) for k, c in zip(kept, found.choice, strict=True)))
        # A choice that was left out is no better than the best one.
        record.bound = max(record.bound, min(found.lower_bound, record.best.cost))


def relinked(problem: Problem, best: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """`best`, with the groups of `other` that save cost and fit."""
    ledger = Ledger(problem, best)
    groups = [{v: other[v] for v in group} for group in _groups(problem, best, other)]
    rises = [cost_change(ledger, changes) for changes in groups]
    for index in np.argsort(rises, kind="stable"):
        changes = groups[int(index)]
        if cost_change(ledger, changes) < 0.0 and fits(ledger, changes):
            apply(ledger, changes)
    return tuple(ledger.choice)


def _groups(problem: Problem, best: Sequence[int], other: Sequence[int]) -> list[list[int]]:
    """The nodes where two choices differ, in groups joined by edges."""
    differ = {v for v, (a, b) in enumerate(zip(best, other, strict=True)) if a != b}
    near: dict[int, list[int]] = {v: [] for v in differ}
    for u, w in problem.edges:
        if u in differ and w in differ:
            near[u].append(w)
            near[w].append(u)
    groups: list[list[int]] = []
    while differ:
        ahead = [min(differ)]
        differ.discard(ahead[0])
        for v in ahead:
            fresh = [w for w in near[v] if w in differ]
            differ.difference_update(fresh)
            ahead.extend(dict.fromkeys(fresh))
        groups.append(sorted(ahead))
    return groups


def descended(
    problem: Problem, best: tuple[int, ...], kept: Sequence[NDArray[np.intp]], deadline: float
) -> tuple[int, ...]:
    """The choice after switching single nodes, among the strategies kept, while that saves cost and fits."""
    ledger = Ledger(problem, best)
    for _ in range(SWEEPS):
        before = ledger.cost
        for v, strategies in enumerate(kept):
            if time.monotonic() > deadline:
                return tuple(ledger.choice)
            costs = (
                {int(a): cost_change(ledger, {v: int(a)}) for a in strategies} if len(strategies) > 1 else {}
            )
            for a in sorted((a for a in costs if costs[a] < 0.0), key=lambda a: (costs[a], a)):
                if fits(ledger, {v: a}):
                    apply(ledger, {v: a})
                    break
        if ledger.cost >= before:
            break
    return tuple(ledger.choice)


def by_programme(problem: Problem, deadline: float) -> Choice | None:
    """What HiGHS finds in a share of the time; None if the programme is too large for that."""
    columns = sum(map(len, problem.node_costs)) + sum(table.size for table in problem.edge_costs)
    seconds = HIGHS_SHARE * (deadline - time.monotonic())
    if columns > MOST_COLUMNS or seconds <= 0.0:
        return None
    return ilp.solve(problem, seconds=seconds)


def _kept(
    problem: Problem, prices: Floats, value: float, deadline: float
) -> tuple[list[NDArray[np.intp]], float]:
    """The strategies that a choice of less than `value` may use, and the bound that proves it."""
    network = network_of(problem, Interner(), prices)
    state = Messages(network, Interner())
    taken = network.rounding + problem.usage_limit * float(prices.sum())
    for _ in range(WALKS):
        before = state.bound
        walk(state)
        if state.bound - before <= SLOW * (value + taken - state.bound) or time.monotonic() > deadline:
            break
    return [
        np.flatnonzero(excess <= value - (state.base - taken)) for excess in state.excess
    ], state.bound - taken


def narrowed(problem: Problem, kept: Sequence[NDArray[np.intp]]) -> Problem:
    """The problem with only the strategies kept[v] of each node; a table that loses nothing stays itself."""

    def row(table: Floats, v: int) -> Floats:
        return table if len(kept[v]) == len(table) else table[kept[v]]

    def grid(table: Floats, edge: int) -> Floats:
        u, w = problem.edges[edge]
        whole = (len(kept[u]), len(kept[w])) == table.shape
        return table if whole else table[np.ix_(kept[u], kept[w])]

    return dataclasses.replace(
        problem,
        node_costs=tuple(row(costs, v) for v, costs in enumerate(problem.node_costs)),
        edge_costs=tuple(grid(table, edge) for edge, table in enumerate(problem.edge_costs)),
        node_usages=tuple(Usage(u.of, u.first, u.last, row(u.bytes, u.of)) for u in problem.node_usages),
        edge_usages=tuple(Usage(u.of, u.first, u.last, grid(u.bytes, u.of)) for u in problem.edge_usages),
    )
