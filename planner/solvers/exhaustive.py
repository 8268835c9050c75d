"""All choices, one after the other: the oracle of the other solvers on tiny problems."""

import itertools
import math
import time

from planner.cost.problem import Choice, Problem, cost_of, peak_of
from planner.errors import InputError

MOST = 10**6


def solve(problem: Problem, *, seconds: float = 60.0, seed: int = 0) -> Choice:
    """The optimum with the memory limit; without a choice that fits, the one of the least peak. `seed` is not
    used. Raises InputError when there are more than 10^6 choices."""
    del seed
    sizes = [len(costs) for costs in problem.node_costs]
    if math.prod(sizes) > MOST:
        raise InputError(
            f"{math.prod(sizes):.3g} choices are too many to try one by one; use the solver 'auto'."
        )
    deadline = time.monotonic() + seconds
    best: tuple[bool, float, float] | None = None
    answer: tuple[int, ...] = ()
    for choice in itertools.product(*map(range, sizes)):
        cost, peak = cost_of(problem, choice), peak_of(problem, choice)
        over = peak > problem.usage_limit
        rank = (over, peak if over else cost, cost)
        if best is None or rank < best:
            best, answer = rank, choice
        if time.monotonic() > deadline:
            return _answer(problem, answer, -math.inf, f"not done in {seconds:g} s")
    cost = cost_of(problem, answer)
    if peak_of(problem, answer) > problem.usage_limit:
        return _answer(problem, answer, cost, "no choice fits: all were tried")
    return _answer(problem, answer, cost, "exact")


def _answer(problem: Problem, choice: tuple[int, ...], bound: float, stopped: str) -> Choice:
    return Choice(choice, cost_of(problem, choice), bound, peak_of(problem, choice), stopped)
