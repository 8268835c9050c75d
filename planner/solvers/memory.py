"""The memory limit, by Lagrange multipliers on the times at which it is broken.

    L(prices)  =  min_x  cost(x) + sum_t prices_t (usage_t(x) - limit)          prices >= 0

is a lower bound of the constrained optimum for any prices, and each L is one unconstrained network
(`planner.solvers.pruning`). L is concave; it is maximised by cutting planes (Kelley 1960): every x that was
seen gives the plane cost(x) + sum_t prices_t (usage_t(x) - limit) over L, a small linear programme gives the
prices where the lowest plane is highest, and the x found there gives the next plane. Once some x fits, prices
are asked for halfway to those of the highest L so far, since the corners of a few planes swing widely
(in-out steps: Ben-Ameur and Neto 2007), unless that last gave nothing new. Only times at which some x broke
the limit have a price. Prices are kept in a box that grows while no x within it fits.

The choices that fit are met on the way, and take from those that do not what saves cost and fits. What is
left between the best of them and L is narrowed by `planner.solvers.repair`. First of all the usage at the
worst time is minimised by itself: if even that is too much, nothing fits (`planner.solvers.shortage`).
"""

import time
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

from planner.cost.problem import Floats, Problem
from planner.solvers.interning import Interner
from planner.solvers.ledger import Seen
from planner.solvers.network import network_of
from planner.solvers.pruning import Minimum, minimise, unless_interrupted
from planner.solvers.record import ROUNDING, Record, note
from planner.solvers.repair import improve, relink
from planner.solvers.shortage import least_usage, make_fit, steepen

CLOSE = 1e-6  # a relative gap between L and its planes at which L counts as highest
SMALL = 1e-3  # a relative gap that is narrowed only if there is time in plenty
PLENTY = 0.1  # of the seconds given: what narrowing may be expected to take
PER_NODE, PER_ENTRY = 1.5e-3, 3e-7  # seconds that narrowing takes, roughly
ROUNDS = 60
ASCENT = 0.7  # of the time that is left goes to the prices at most
INWARD = 0.5  # how far the next prices are moved to the best ones
NEW_TIMES = 4  # that get a price after one round
FIRST_BOX, LAST_BOX, GROWTH = 0.1, 1e5, 8.0  # the highest price, in cost per peak of the free minimum


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
    until = deadline - (1.0 - ASCENT) * max(0.0, deadline - time.monotonic())
    prices = _ascend(record, first, free, intern, small, until)
    if record.best is None:
        make_fit(record, deadline)
    if record.best is None and np.isfinite(record.floor):
        steepen(record, first, intern, free.order, deadline)
    if record.best is not None and record.gap > small:
        improve(record, prices, deadline)
    return "the time was up" if time.monotonic() > deadline and record.gap > ROUNDING else ""


def _work(problem: Problem) -> float:
    """Seconds that narrowing the last gap takes, very roughly."""
    distinct = {id(table): table.size for table in (*problem.node_costs, *problem.edge_costs)}
    return PER_NODE * len(problem.node_costs) + PER_ENTRY * sum(distinct.values())


def _ascend(
    record: Record, first: Seen, free: Minimum, intern: Interner, small: float, deadline: float
) -> Floats:
    """Cutting planes until the gap is `small`; the prices of the highest L, shape (horizon,)."""
    problem, limit = record.problem, record.problem.usage_limit
    unit = max(first.cost, np.finfo(float).tiny) / first.peak
    highest, order = np.zeros(problem.horizon), free.order
    times = set(_worst(first.usage, limit))
    known: set[tuple[int, ...]] = set()
    last, box, inward = first, FIRST_BOX, 0.0
    for _ in range(ROUNDS):
        active = sorted(times)
        prices, ceiling = _highest(record.seen, first, active, limit, unit, box)
        at_edge = bool((prices >= box * unit * (1 - CLOSE)).any())
        if ceiling - record.bound <= CLOSE * abs(record.bound) and not at_edge:
            break
        full = inward * highest
        full[active] += (1.0 - inward) * prices
        network = network_of(problem, intern, full)
        at_once = order is not None  # prices tell more strategies apart, not fewer
        found = minimise(network, intern, start=last.choice, order=order, at_once=at_once, deadline=deadline)
        order = found.order or order
        value = found.bound - network.rounding - limit * float(full.sum())
        if value > record.bound:
            highest = full
        last = note(record, found.choice, value)
        unless_interrupted(found)
        relink(record)
        if last.peak > limit and at_edge:
            box *= GROWTH
        times.update(_worst(last.usage, limit))
        inward = INWARD if record.best is not None and found.choice not in known else 0.0
        known.add(found.choice)
        if record.gap <= small or box > LAST_BOX or found.cut or time.monotonic() > deadline:
            break
    return highest


def _worst(usage: Floats, limit: float) -> list[int]:
    """The worst time of each stretch over the limit, of the few worst stretches."""
    over = np.flatnonzero(usage > limit)
    stretches = np.split(over, np.flatnonzero(np.diff(over) > 1) + 1) if len(over) else []
    tops = [int(stretch[usage[stretch].argmax()]) for stretch in stretches]
    return sorted(tops, key=lambda at: (-usage[at], at))[:NEW_TIMES]


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
