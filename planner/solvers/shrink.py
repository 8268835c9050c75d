"""A smaller problem with the same optimum: followers folded, dominated strategies and sham edges dropped.

The passes of `planner.solvers.mapping` and `planner.solvers.dominance` open the way for each other, so they
are repeated; the maps back are put one behind the other.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Problem
from planner.solvers.dominance import joined, undominated
from planner.solvers.interning import Interner
from planner.solvers.mapping import Reduced, reduced
from planner.solvers.repair import narrowed

PASSES = 2


def shrunk(problem: Problem, intern: Interner) -> Reduced | None:
    """The smaller problem and the way back; None if every choice is forbidden."""
    whole = reduced(problem, intern)
    return None if whole is None else slimmed(whole, intern)


def slimmed(whole: Reduced, intern: Interner, deadline: float = np.inf) -> Reduced | None:
    """The same, without dominated strategies and sham edges, as far as one gets by the deadline; None if
    every choice is forbidden."""
    for _ in range(PASSES):
        if time.monotonic() > deadline:
            break
        before = sum(map(len, whole.problem.node_costs)), len(whole.problem.edges)
        slim = joined(whole.problem, intern)
        less = within(Reduced(slim, whole.root, whole.strategies), undominated(slim, intern), intern)
        if less is None:
            return None
        whole = less
        if (sum(map(len, whole.problem.node_costs)), len(whole.problem.edges)) == before:
            break
    return whole


def within(whole: Reduced, kept: Sequence[NDArray[np.intp]], intern: Interner) -> Reduced | None:
    """The same with only the strategies kept[v] of each node of the smaller problem, and followers folded;
    None if every choice of these is forbidden."""
    inner = reduced(narrowed(whole.problem, kept), intern)
    if inner is None:
        return None
    through = [intern(kept[v][one]) for v, one in enumerate(inner.strategies)]
    root = tuple(inner.root[r] for r in whole.root)
    strategies = tuple(one[through[r]] for r, one in zip(whole.root, whole.strategies, strict=True))
    return Reduced(inner.problem, root, strategies)
