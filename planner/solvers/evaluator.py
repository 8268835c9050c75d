"""Evaluators: what a random walk over choices asks about the moves it is offered.

The walk (`planner.solvers.mcmc`) knows nothing of what a choice costs. `Additive` prices moves by the tables
of a problem, looking only at what a move touches; a simulator of the step's timeline can stand in its place.
"""

from typing import Protocol

import numpy as np

from planner.cost.problem import Floats, Problem
from planner.solvers.ledger import Changes, changed_usage, excess_change, fits, ledger_of

Near = list[tuple[int, Floats]]  # of one node: each neighbour, with the table [own strategy, neighbour's]


class Evaluator(Protocol):
    """A choice that can be changed. choice: one strategy per node; cost: of that choice."""

    choice: list[int]
    cost: float

    def price(self, changes: Changes) -> float:
        """What the choice would cost after the changes."""
        ...

    def allows(self, changes: Changes) -> bool:
        """Whether the memory limit holds after the changes, at least wherever they use more than before.
        Asked only of moves whose price is accepted."""
        ...

    def move(self, changes: Changes) -> None:
        """Makes the changes."""
        ...


class Additive:
    """Prices by a problem's tables. A forbidden strategy or pair costs more than any choice without one, and
    so does, until the limit is kept for the first time, each time that needs `limit` bytes too many."""

    def __init__(self, problem: Problem, choice: tuple[int, ...]) -> None:
        self.unary, self.near, self.wall = tables_of(problem)
        self.ledger = ledger_of(problem, tuple(choice)) if np.isfinite(problem.usage_limit) else None
        self.choice = self.ledger.choice if self.ledger else list(choice)
        self.over = 0.0  # bytes above the limit, summed over all times
        if self.ledger:
            self.over = float(np.maximum(self.ledger.usage - problem.usage_limit, 0.0).sum())
        self.fine = self.wall / max(problem.usage_limit, 1.0)
        self.cost = self._added() + self.fine * self.over

    def _added(self) -> float:
        """The costs of all nodes and pairs."""
        cost = sum(costs.item(c) for costs, c in zip(self.unary, self.choice, strict=True))
        for v, c in enumerate(self.choice):
            cost += sum(table.item(c, self.choice[w]) for w, table in self.near[v] if v < w)
        return cost

    def price(self, changes: Changes) -> float:
        choice, cost = self.choice, self.cost
        for v, new in changes.items():
            old = choice[v]
            cost += self.unary[v].item(new) - self.unary[v].item(old)
            for w, table in self.near[v]:
                after = changes.get(w)
                if after is None:
                    cost += table.item(new, choice[w]) - table.item(old, choice[w])
                elif v < w:  # the other end sees this edge as well
                    cost += table.item(new, after) - table.item(old, choice[w])
        if self.ledger is not None and self.over > 0.0:
            cost += self.fine * excess_change(self.ledger, changes)
        return cost

    def allows(self, changes: Changes) -> bool:
        return self.ledger is None or self.over > 0.0 or fits(self.ledger, changes)

    def move(self, changes: Changes) -> None:
        self.cost = self.price(changes)
        kept = self.over == 0.0
        if self.ledger is not None:
            first, last, after = changed_usage(self.ledger, changes)
            self.ledger.usage[first:last] = after
        for v, new in changes.items():
            self.choice[v] = new
        if self.ledger is not None and not kept:
            limit = self.ledger.problem.usage_limit
            self.over = float(np.maximum(self.ledger.usage - limit, 0.0).sum())
            if self.over == 0.0:  # from here on without the roundings of a large fine
                self.cost = self._added()


def tables_of(problem: Problem) -> tuple[list[Floats], list[Near], float]:
    """The costs of every node, with those of its edges to itself, and its neighbours, parallel edges added
    up. In place of infinity stands a finite wall, the last result, higher than any choice that is allowed."""
    distinct = {id(table): table for table in (*problem.node_costs, *problem.edge_costs)}
    most = {
        name: float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) for name, table in distinct.items()
    }
    wall = 1.0 + 2.0 * sum(most[id(table)] for table in (*problem.node_costs, *problem.edge_costs))
    finite = {
        name: table if np.isfinite(table).all() else np.where(np.isfinite(table), table, wall)
        for name, table in distinct.items()
    }
    unary = [finite[id(costs)] for costs in problem.node_costs]
    pairs: dict[tuple[int, int], Floats] = {}
    for (u, w), given in zip(problem.edges, problem.edge_costs, strict=True):
        table = finite[id(given)]
        if u == w:
            unary[u] = unary[u] + np.diagonal(table)
            continue
        pair, table = ((u, w), table) if u < w else ((w, u), table.T)
        pairs[pair] = pairs[pair] + table if pair in pairs else table
    near: list[Near] = [[] for _ in unary]
    for (u, w), table in pairs.items():
        near[u].append((w, table))
        near[w].append((u, table.T))
    return unary, near, wall
