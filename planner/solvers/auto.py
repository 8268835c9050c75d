"""The solver the planner calls: picks a way by the size of the problem."""

from collections.abc import Sequence

from planner.cost.problem import Choice, Problem
from planner.solvers import elimination


def solve(
    problem: Problem, *, seconds: float = 60.0, seed: int = 0, starts: Sequence[Sequence[int]] = ()
) -> Choice:
    """The best choice found in `seconds`. starts: full choices to begin with, such as the named schemes'."""
    del starts
    return elimination.solve(problem, seconds=seconds, seed=seed)
