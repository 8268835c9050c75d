"""Dropping what no optimum needs: dominated strategies, and edges that only look like edges.

    b is dominated by a   if a costs no more by itself, uses no more at any time, and costs and uses no more
                          at any edge, whatever the other end does; of equals the first one stays
    an edge is separable  if cost[a, b] = r[a] + s[b]; then r and s are costs of its ends

Both keep at least one optimum of the problem with its memory limit.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Problem, Usage
from planner.solvers.factors import Map
from planner.solvers.interning import Interner

MOST = 2e8  # comparisons of one node that are worth it


def joined(problem: Problem, intern: Interner) -> Problem:
    """The problem without separable edges."""
    costs = list(problem.node_costs)
    used = {usage.of for usage in problem.edge_usages}
    number: dict[int, int] = {}
    for e, ((u, w), table) in enumerate(zip(problem.edges, problem.edge_costs, strict=True)):
        parts = None if e in used or u == w else _parts(table, intern)
        if parts is None:
            number[e] = len(number)
        else:
            costs[u] = costs[u] + parts[0]
            costs[w] = costs[w] + parts[1]
    return dataclasses.replace(
        problem,
        node_costs=tuple(costs),
        edges=tuple(problem.edges[e] for e in number),
        edge_costs=tuple(problem.edge_costs[e] for e in number),
        edge_usages=tuple(dataclasses.replace(one, of=number[one.of]) for one in problem.edge_usages),
    )


def _parts(table: Floats, intern: Interner) -> tuple[Floats, Floats] | None:
    def make() -> tuple[Floats, Floats] | None:
        if not np.isfinite(table).all():
            return None
        rows, columns = table[:, 0].copy(), table[0] - table[0, 0]
        return (rows, columns) if np.array_equal(rows[:, None] + columns, table) else None

    return intern.recall(("parts", id(intern(table))), make)


def undominated(problem: Problem, intern: Interner) -> list[Map]:
    """The strategies of each node that are left when the dominated ones go."""
    features: list[list[Floats]] = [[costs[:, None]] for costs in problem.node_costs]
    for usage in problem.node_usages:
        features[usage.of].append(usage.bytes[:, None])
    held: dict[int, list[Usage]] = {}
    for usage in problem.edge_usages:
        held.setdefault(usage.of, []).append(usage)
    for e, ((u, w), table) in enumerate(zip(problem.edges, problem.edge_costs, strict=True)):
        for one in (table, *(usage.bytes for usage in held.get(e, ()))):
            features[u].append(_columns(one, 0, intern))
            features[w].append(_columns(one, 1, intern))
    return [_kept(parts) for parts in features]


def _columns(table: Floats, axis: int, intern: Interner) -> Floats:
    """What tells the strategies of one end apart: the distinct columns, or rows as columns."""
    one = intern(table)
    return intern.recall(
        ("columns", axis, id(one)), lambda: np.unique(one.T if axis else one, axis=1).astype(np.float64)
    )


def _kept(parts: list[Floats]) -> Map:
    table = np.hstack(parts)
    count = len(table)
    if count == 1 or float(count) ** 2 * table.shape[1] > MOST:
        return np.arange(count)
    least: NDArray[np.bool_] = np.ones(count, dtype=bool)
    order = np.lexsort((np.arange(count), np.where(np.isfinite(table), table, 0.0).sum(axis=1), table[:, 0]))
    for a in order:
        if least[a]:
            beaten = np.all(table[a] <= table, axis=1)
            beaten[a] = False
            least &= ~beaten
    return np.flatnonzero(least)
