"""The memory limit, by Lagrange multipliers on the times at which it is broken.

    L(prices)  =  min_x  cost(x) + sum_t prices_t (usage_t(x) - limit)          prices >= 0

is a lower bound of the constrained optimum for any prices, and each L is one unconstrained network
(`planner.solvers.pruning`). L is concave; it is maximised by cutting planes (Kelley 1960): every x that was
seen gives the plane cost(x) + sum_t prices_t (usage_t(x) - limit) over L, a small linear programme gives the
prices where the lowest plane is highest, and the x found there gives the next plane. Only times at which some
x broke the limit have a price. Prices are kept in a box that grows while no x within it fits.

The choices that fit are met on the way; what is left between the best of them and L is narrowed by
`planner.solvers.repair`. First of all the usage at the worst time is minimised by itself: if even that is too
much, nothing fits (`planner.solvers.shortage`).
"""

import dataclasses
import time
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import linprog

from planner.cost.problem import Choice, Floats, Problem, usage_over_time
from planner.solvers.interning import Interner
from planner.solvers.ledger import Seen, fitting, see
from planner.solvers.network import network_of
from planner.solvers.pruning import Minimum, minimise
from planner.solvers.repair import improved
from planner.solvers.shortage import least_usage, made_to_fit, nothing_fits

ROUNDING = 1e-9  # a relative gap that is put down to floating point
CLOSE = 1e-6  # a relative gap between L and its planes at which L counts as highest
ROUNDS = 60
FIRST_BOX, LAST_BOX, GROWTH = 0.02, 1e5, 8.0  # the highest price, in cost per peak of the free minimum


@dataclasses.dataclass(frozen=True)
class _Dual:
    """The highest L so far and its prices (shape (horizon,)); complete: false if the time was up."""

    bound: float
    prices: Floats
    complete: bool


def solve_within(problem: Problem, free: Minimum, starts: Iterable[Sequence[int]], deadline: float) -> Choice:
    """The best choice that fits. free: the minimum without the limit. starts: choices to look at."""
    if not np.isfinite(free.value):
        return _none_allowed(problem, free)
    seen = [see(problem, free.choice), *(see(problem, tuple(start)) for start in starts)]
    if seen[0].peak <= problem.usage_limit:
        return _answer(problem, seen[:1], free.bound, free.complete)
    if not free.complete:  # interrupted, or out of time: only look at what is there
        deadline = time.monotonic()
    if not fitting(problem, seen):
        floor, choice = least_usage(problem, int(seen[0].usage.argmax()), deadline)
        seen.append(see(problem, choice))
        if floor > problem.usage_limit:
            return nothing_fits(problem, seen, free.bound, floor, deadline)
    dual = _ascend(problem, seen, free.bound, deadline)
    if not fitting(problem, seen):
        made, impossible = made_to_fit(problem, seen, deadline)
        seen += made
        if not fitting(problem, seen):
            return nothing_fits(problem, seen, dual.bound, np.inf if impossible else 0.0, deadline)
    return _narrowed(problem, seen, dual, deadline)


def _narrowed(problem: Problem, seen: Sequence[Seen], dual: _Dual, deadline: float) -> Choice:
    """The answer, after closing what gap can be closed; at least one of `seen` fits."""
    fits = fitting(problem, seen)
    best = min(fits, key=lambda one: one.cost)
    if not dual.complete or best.cost - dual.bound <= ROUNDING * best.cost:
        return _answer(problem, fits, dual.bound, dual.complete)
    others = [one.choice for one in seen]
    choice, bound = improved(problem, dual.prices, dual.bound, others, best.choice, deadline)
    return _answer(problem, [*fits, see(problem, choice)], max(dual.bound, bound), dual.complete)


def _answer(problem: Problem, fits: Sequence[Seen], bound: float, complete: bool) -> Choice:
    best = min(fits, key=lambda one: one.cost)
    bound = min(bound, best.cost)
    gap = (best.cost - bound) / best.cost if best.cost else 0.0
    if gap <= ROUNDING:
        return Choice(best.choice, best.cost, best.cost, best.peak, "exact")
    stopped = f"gap {100 * gap:.2g}%" + ("" if complete else ", the time was up")
    return Choice(best.choice, best.cost, bound, best.peak, stopped)


def _none_allowed(problem: Problem, free: Minimum) -> Choice:
    proven = (
        "every choice has a forbidden pair" if np.isinf(free.bound) else "none was found in the time given"
    )
    peak = float(usage_over_time(problem, free.choice).max(initial=0.0))
    return Choice(free.choice, np.inf, free.bound, peak, f"no choice is allowed: {proven}")


def _ascend(problem: Problem, seen: list[Seen], bound: float, deadline: float) -> _Dual:
    """Cutting planes; adds every choice it meets to `seen`."""
    intern = Interner()
    limit = problem.usage_limit
    unit = max(seen[0].cost, np.finfo(float).tiny) / seen[0].peak
    dual = _Dual(bound, np.zeros(problem.horizon), True)
    times = {int(seen[0].usage.argmax())}
    box = FIRST_BOX
    try:
        for _ in range(ROUNDS):
            active = sorted(times)
            prices, ceiling = _highest(seen, active, limit, unit, box)
            at_edge = bool((prices >= box * unit * (1 - CLOSE)).any())
            if ceiling - dual.bound <= CLOSE * abs(dual.bound) and not at_edge:
                break
            full = np.zeros(problem.horizon)
            full[active] = prices
            network = network_of(problem, intern, full)
            found = minimise(network, intern, start=seen[-1].choice, deadline=deadline)
            value = found.bound - network.rounding - limit * float(prices.sum())
            if value > dual.bound:
                dual = _Dual(value, full, True)
            seen.append(see(problem, found.choice))
            if not found.complete or time.monotonic() > deadline:
                return dataclasses.replace(dual, complete=False)
            worst = int(seen[-1].usage.argmax())
            if seen[-1].peak > limit:
                if worst in times and at_edge:
                    if box > LAST_BOX:
                        break
                    box *= GROWTH
                times.add(worst)
            if any(one.peak <= limit and one.cost - dual.bound <= ROUNDING * one.cost for one in seen):
                break
    except KeyboardInterrupt:
        return dataclasses.replace(dual, complete=False)
    return dual


def _highest(
    seen: Sequence[Seen], active: Sequence[int], limit: float, unit: float, box: float
) -> tuple[Floats, float]:
    """The prices within the box where the lowest plane is highest, and that height."""
    costs = np.array([one.cost for one in seen if np.isfinite(one.cost)])
    over = np.array([(one.usage[active] - limit) / seen[0].peak for one in seen if np.isfinite(one.cost)])
    scale = unit * seen[0].peak
    planes = np.hstack([-over, np.ones((len(costs), 1))])
    goal = np.zeros(len(active) + 1)
    goal[-1] = -1.0
    bounds = [(0.0, box)] * len(active) + [(None, None)]
    solved = linprog(goal, A_ub=planes, b_ub=costs / scale, bounds=bounds, method="highs")
    return np.asarray(solved.x[:-1]) * unit, float(solved.x[-1]) * scale
