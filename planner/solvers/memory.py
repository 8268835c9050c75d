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

import time
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from planner.cost.problem import Floats, Problem
from planner.solvers.interning import Interner
from planner.solvers.ledger import Seen
from planner.solvers.network import network_of
from planner.solvers.pruning import Minimum, minimise
from planner.solvers.record import ROUNDING, Record, note
from planner.solvers.repair import improve, relink
from planner.solvers.shortage import least_usage, make_fit, steepen

CLOSE = 1e-6  # a relative gap between L and its planes at which L counts as highest
SMALL = 1e-3  # a relative gap that is narrowed only if there is time in plenty
PLENTY = 0.1  # of the seconds given: what narrowing may be expected to take
PER_NODE, PER_ENTRY = 1.5e-3, 3e-7  # seconds that narrowing takes, roughly
ROUNDS = 60
FIRST_BOX, LAST_BOX, GROWTH = 0.02, 1e5, 8.0  # the highest price, in cost per peak of the free minimum


def keep_the_limit(record: Record, free: Minimum, intern: Interner, seconds: float, deadline: float) -> str:
    """Looks for the best choice that fits; why that was cut short, or ''. free: the minimum without the
    limit, which was noted last and does not fit. seconds: that were given in all."""
    problem, first = record.problem, record.seen[-1]
    if record.best is None:
        record.floor, choice = least_usage(problem, int(first.usage.argmax()), intern, free.order, deadline)
        note(record, choice)
        if record.floor > problem.usage_limit:
            steepen(record, first, intern, free.order, deadline)
            return ""
    small = SMALL if _work(problem) > PLENTY * seconds else ROUNDING
    prices, cut = _ascend(record, first, free, intern, small, deadline)
    if cut:
        return cut
    if record.best is None:
        make_fit(record, deadline)
    if record.best is None:
        if np.isfinite(record.floor):
            steepen(record, first, intern, free.order, deadline)
    elif record.gap > ROUNDING:
        relink(record)
        if record.gap > small:
            improve(record, prices, deadline)
    return "the time was up" if time.monotonic() > deadline else ""


def _work(problem: Problem) -> float:
    """Seconds that narrowing the last gap takes, very roughly."""
    distinct = {id(table): table.size for table in (*problem.node_costs, *problem.edge_costs)}
    return PER_NODE * len(problem.node_costs) + PER_ENTRY * sum(distinct.values())


def _ascend(
    record: Record, first: Seen, free: Minimum, intern: Interner, small: float, deadline: float
) -> tuple[Floats, str]:
    """Cutting planes until the gap is `small`: prices of the highest L, and why it was cut short, or ''."""
    problem, limit = record.problem, record.problem.usage_limit
    unit = max(first.cost, np.finfo(float).tiny) / first.peak
    highest, order = np.zeros(problem.horizon), free.order
    times = {int(first.usage.argmax())}
    last, box = first, FIRST_BOX
    for _ in range(ROUNDS):
        active = sorted(times)
        prices, ceiling = _highest(record.seen, first, active, limit, unit, box)
        at_edge = bool((prices >= box * unit * (1 - CLOSE)).any())
        if ceiling - record.bound <= CLOSE * abs(record.bound) and not at_edge:
            break
        full = np.zeros(problem.horizon)
        full[active] = prices
        network = network_of(problem, intern, full)
        found = minimise(network, intern, start=last.choice, order=order, deadline=deadline)
        order = found.order or order
        value = found.bound - network.rounding - limit * float(prices.sum())
        if value > record.bound:
            highest = full
        last = note(record, found.choice, value)
        if found.cut:
            return highest, found.cut
        if last.peak > limit:
            worst = int(last.usage.argmax())
            if worst in times and at_edge:
                if box > LAST_BOX:
                    break
                box *= GROWTH
            times.add(worst)
        if record.gap <= small:
            break
        if time.monotonic() > deadline:
            return highest, "the time was up"
    return highest, ""


def _highest(
    seen: Sequence[Seen], first: Seen, active: Sequence[int], limit: float, unit: float, box: float
) -> tuple[Floats, float]:
    """The prices within the box where the lowest plane is highest, and that height."""
    allowed = [one for one in seen if np.isfinite(one.cost)]
    costs = np.array([one.cost for one in allowed])
    over = np.array([(one.usage[active] - limit) / first.peak for one in allowed])
    scale = unit * first.peak
    planes = np.hstack([-over, np.ones((len(costs), 1))])
    goal = np.zeros(len(active) + 1)
    goal[-1] = -1.0
    bounds = [(0.0, box)] * len(active) + [(None, None)]
    solved = linprog(goal, A_ub=planes, b_ub=costs / scale, bounds=bounds, method="highs")
    return np.asarray(solved.x[:-1]) * unit, float(solved.x[-1]) * scale
