"""The solver the planner calls: exact where that is possible, with a proven gap where it is not."""

import time
from collections.abc import Sequence

from planner.cost.problem import Choice, Problem, cost_of, peak_of
from planner.solvers.interning import Interner
from planner.solvers.network import network_of
from planner.solvers.pruning import minimise


def solve(
    problem: Problem, *, seconds: float = 60.0, seed: int = 0, starts: Sequence[Sequence[int]] = ()
) -> Choice:
    """The best choice found in `seconds`. starts: full choices to begin with, such as the named schemes'."""
    del seed
    began = time.monotonic()
    intern = Interner()
    first = min((tuple(start) for start in starts), key=lambda start: cost_of(problem, start), default=None)
    found = minimise(network_of(problem, intern), intern, start=first, deadline=began + seconds)
    cost, peak = cost_of(problem, found.choice), peak_of(problem, found.choice)
    if found.bound >= found.value:
        return Choice(found.choice, cost, cost, peak, "exact")
    gap = f"gap {100 * (found.value - found.bound) / found.value:.2f}%"
    return Choice(found.choice, cost, min(cost, found.bound), peak, gap)
