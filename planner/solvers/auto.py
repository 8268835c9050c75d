"""The solver the planner calls: exact where that is possible, with a proven gap where it is not."""

import time
from collections.abc import Sequence

from planner.cost.problem import Choice, Problem, cost_of
from planner.solvers.interning import Interner
from planner.solvers.memory import solve_within
from planner.solvers.network import network_of
from planner.solvers.pruning import minimise


def solve(
    problem: Problem, *, seconds: float = 60.0, seed: int = 0, starts: Sequence[Sequence[int]] = ()
) -> Choice:
    """The best choice found in `seconds`: never worse than any of `starts` that fits the memory limit.

    starts: full choices to begin with, such as the named schemes'. `seed` is not used: nothing is random.
    Interrupting it (KeyboardInterrupt) gives the best choice so far with its bound."""
    del seed
    deadline = time.monotonic() + seconds
    intern = Interner()
    network = network_of(problem, intern)
    first = min((tuple(start) for start in starts), key=lambda start: cost_of(problem, start), default=None)
    free = minimise(network, intern, start=first, deadline=deadline)
    free = type(free)(free.choice, free.value, free.bound - network.rounding, free.complete)
    return solve_within(problem, free, starts, deadline)
