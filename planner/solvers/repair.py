"""Bettering a choice that fits, and settling what is left of a problem.

relinked       a cheaper choice that does not fit differs from the best one in some nodes; each connected
               group of them is switched if that saves cost and still fits, the largest saving first
rescued        the other way round: the cheaper one takes groups of the best one until it fits
descended      single nodes are switched while that saves cost and fits
by_programme   if few enough strategies are left, HiGHS solves that exactly
narrowed       a problem with only some strategies of each node
"""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Choice, Floats, Problem, Usage
from planner.solvers import ilp
from planner.solvers.ledger import Changes, Ledger, Seen, Ties, apply, cost_change, excess_change, fits

MOST_COLUMNS = 30_000  # of an integer programme that is tried
HIGHS_SHARE = 0.5  # of the time that is left


def relinked(problem: Problem, ties: Ties, best: Seen, other: Seen) -> tuple[int, ...]:
    """`best`, with the groups of `other` that save cost and fit."""
    ledger = Ledger(problem, best, ties)
    groups = _groups(problem, ties, best.choice, other.choice)
    rises = [cost_change(ledger, changes) for changes in groups]
    for index in np.argsort(rises, kind="stable"):
        changes = groups[int(index)]
        if cost_change(ledger, changes) < 0.0 and fits(ledger, changes):
            apply(ledger, changes)
    return tuple(ledger.choice)


def rescued(problem: Problem, ties: Ties, other: Seen, best: Seen) -> tuple[int, ...]:
    """`other`, which holds too much, with the groups of `best` that save most above the limit for their cost,
    until it fits."""
    ledger = Ledger(problem, other, ties)
    groups = _groups(problem, ties, other.choice, best.choice)
    while groups and ledger.usage.max(initial=0.0) > problem.usage_limit:
        rates = []
        for changes in groups:
            less, more = -excess_change(ledger, changes), cost_change(ledger, changes)
            rates.append(-np.inf if less <= 0.0 else less / more if more > 0.0 else np.inf)
        at = int(np.argmax(rates))
        if rates[at] == -np.inf:
            return best.choice
        apply(ledger, groups.pop(at))
    return tuple(ledger.choice)


def descended(problem: Problem, ties: Ties, best: Seen, deadline: float) -> tuple[int, ...]:
    """A choice after switching single nodes while that saves cost and fits."""
    ledger = Ledger(problem, best, ties)
    for v in range(len(best.choice)):
        if time.monotonic() > deadline:
            break
        costs = _costs_of(ledger, v)
        cheaper = np.flatnonzero(costs < costs[ledger.choice[v]])
        for a in cheaper[np.argsort(costs[cheaper], kind="stable")]:
            if fits(ledger, {v: int(a)}):
                apply(ledger, {v: int(a)})
                break
    return tuple(ledger.choice)


def _costs_of(ledger: Ledger, v: int) -> Floats:
    """What each strategy of a node costs by itself and with its neighbours' choices."""
    problem = ledger.problem
    costs = problem.node_costs[v].copy()
    for edge in ledger.ties.edges_of[v]:
        (u, w), table = problem.edges[edge], problem.edge_costs[edge]
        if u == w:
            costs += np.diagonal(table)
        else:
            costs += table[:, ledger.choice[w]] if u == v else table[ledger.choice[u]]
    return costs


def _groups(problem: Problem, ties: Ties, old: Sequence[int], new: Sequence[int]) -> list[Changes]:
    """What leads from one choice to another, in groups of nodes joined by edges."""
    differ = {v for v, (a, b) in enumerate(zip(old, new, strict=True)) if a != b}
    groups: list[Changes] = []
    while differ:
        ahead = [min(differ)]
        differ.discard(ahead[0])
        for v in ahead:
            ends = (problem.edges[edge] for edge in ties.edges_of[v])
            fresh = dict.fromkeys(w for pair in ends for w in pair if w in differ)
            differ.difference_update(fresh)
            ahead.extend(fresh)
        groups.append({v: new[v] for v in sorted(ahead)})
    return groups


def by_programme(problem: Problem, deadline: float) -> Choice | None:
    """What HiGHS finds in a share of the time; None if the programme is too large for that."""
    columns = sum(map(len, problem.node_costs)) + sum(table.size for table in problem.edge_costs)
    seconds = HIGHS_SHARE * (deadline - time.monotonic())
    if columns > MOST_COLUMNS or seconds <= 0.0:
        return None
    return ilp.solve(problem, seconds=seconds)


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
