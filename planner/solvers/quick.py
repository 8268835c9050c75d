"""A choice that fits, from little time: what there is to tell if there is no time to compile kernels.

Every node begins with the strategy that holds least, summed over time. Then nodes with a forbidden pair, or
alive when the limit is broken, are switched one by one, to the strategy of the fewest forbidden pairs, then
of the fewest bytes above the limit, then of the lowest cost (min-conflicts: Minton et al. 1992); a switch
never adds bytes above the limit. While there is time, all nodes are switched in this way.
"""

from collections.abc import Callable

import numpy as np

from planner.cost.problem import Floats, Problem, usage_over_time
from planner.solvers.arrays import disjoint

SWEEPS = 20


def suits(problem: Problem) -> bool:
    """Whether `quick` and the search can take the problem: it has a limit, and no usage on edges."""
    return bool(np.isfinite(problem.usage_limit)) and not problem.edge_usages and bool(problem.node_costs)


class _State:
    """near[v]: the edges of v, as (other end, table with v's strategies as rows); held[v]: its usages, as
    (first, last, bytes) over times of which none overlap; used: bytes at each time."""

    def __init__(self, problem: Problem, choice: list[int]) -> None:
        self.problem, self.choice = problem, choice
        self.used = usage_over_time(problem, choice)
        spans: list[dict[tuple[int, int], Floats]] = [{} for _ in choice]
        self.near: list[list[tuple[int, Floats]]] = [[] for _ in choice]
        for usage in problem.node_usages:
            if usage.last > usage.first:
                held, span = spans[usage.of], (usage.first, usage.last)
                held[span] = held[span] + usage.bytes if span in held else usage.bytes
        self.held = [disjoint(held) for held in spans]
        for (u, w), table in zip(problem.edges, problem.edge_costs, strict=True):
            self.near[u].append((w, table))
            self.near[w].append((u, table.T))


def quick(problem: Problem, done: Callable[[], bool]) -> tuple[int, ...]:
    """The choice, which fits if that worked out. done: whether to give what there is by now, asked once
    nothing can be mended. The problem has no usage on edges, and no loop."""
    held = [np.where(np.isfinite(costs), 0.0, np.inf) for costs in problem.node_costs]
    for usage in problem.node_usages:
        held[usage.of] = held[usage.of] + (usage.last - usage.first) * usage.bytes
    state = _State(problem, [int(one.argmin()) for one in held])
    for _ in range(SWEEPS):
        if not sum(_switch(state, v, only_mend=True) for v in range(len(held))):
            break
    moved = True
    while moved:
        moved = False
        for v in range(len(held)):
            if done():
                return tuple(state.choice)
            moved = _switch(state, v, only_mend=False) or moved
    return tuple(state.choice)


def _switch(state: _State, v: int, only_mend: bool) -> bool:
    """Switches v if something is wrong there, or could be cheaper; whether it did."""
    now = state.choice[v]
    rows = [state.problem.node_costs[v], *(table[:, state.choice[w]] for w, table in state.near[v])]
    costs = np.sum(rows, axis=0)
    if only_mend and np.isfinite(costs[now]) and not _broken(state, v):
        return False
    forbidden, over = np.isinf(rows).sum(axis=0), _over(state, v)
    order = np.lexsort((costs, over, forbidden))
    best = int(order[np.argmax(over[order] <= over[now])])
    if (forbidden[best], over[best], costs[best]) >= (forbidden[now], over[now], costs[now]):
        return False
    for first, last, bytes_ in state.held[v]:
        state.used[first:last] += bytes_[best] - bytes_[now]
    state.choice[v] = best
    return True


def _broken(state: _State, v: int) -> bool:
    limit = state.problem.usage_limit
    return any((state.used[first:last] > limit).any() for first, last, _ in state.held[v])


def _over(state: _State, v: int) -> Floats:
    """The bytes above the limit, summed over time, with each strategy of v."""
    limit, now = state.problem.usage_limit, state.choice[v]
    over = np.zeros(len(state.problem.node_costs[v]))
    for first, last, bytes_ in state.held[v]:
        others = state.used[first:last] - bytes_[now]
        if others.max() + bytes_.max() > limit:
            over += np.maximum(others + bytes_[:, None] - limit, 0.0).sum(axis=1)
    return over
