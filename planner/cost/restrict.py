"""A Problem restricted to some strategies of each node, and the way back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Problem, Usage

Kept = NDArray[np.int64]


def restrict(problem: Problem, kept: Sequence[Kept]) -> Problem:
    """The same problem with only the strategies `kept[v]` of each node. Equal index arrays should be the same
    object, so that equal tables stay the same object too."""
    rows: dict[tuple[int, int], Floats] = {}
    grids: dict[tuple[int, int, int], Floats] = {}

    def row(table: Floats, v: int) -> Floats:
        key = (id(table), id(kept[v]))
        if key not in rows:
            rows[key] = table[kept[v]]
        return rows[key]

    def grid(table: Floats, e: int) -> Floats:
        u, w = problem.edges[e]
        key = (id(table), id(kept[u]), id(kept[w]))
        if key not in grids:
            grids[key] = table[np.ix_(kept[u], kept[w])]
        return grids[key]

    return Problem(
        node_costs=tuple(row(table, v) for v, table in enumerate(problem.node_costs)),
        edges=problem.edges,
        edge_costs=tuple(grid(table, e) for e, table in enumerate(problem.edge_costs)),
        node_usages=tuple(Usage(u.of, u.first, u.last, row(u.bytes, u.of)) for u in problem.node_usages),
        edge_usages=tuple(Usage(u.of, u.first, u.last, grid(u.bytes, u.of)) for u in problem.edge_usages),
        usage_limit=problem.usage_limit,
        horizon=problem.horizon,
    )


def widen(choice: Sequence[int], kept: Sequence[Kept]) -> tuple[int, ...]:
    """A choice of the restricted problem as a choice of the whole one."""
    return tuple(int(indices[c]) for indices, c in zip(kept, choice, strict=True))
