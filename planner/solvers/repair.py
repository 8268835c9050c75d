"""Bettering a choice that fits, and settling what is left of a problem.

relinked       a cheaper choice that does not fit differs from the best one in some nodes; each connected
               group of them is switched if that saves cost and still fits, the largest saving first
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
from planner.solvers.ledger import Ledger, apply, cost_change, fits

MOST_COLUMNS = 30_000  # of an integer programme that is tried
HIGHS_SHARE = 0.5  # of the time that is left


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
