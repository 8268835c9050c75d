"""The memory limit: what to try, in which order.

First of all the usage at the worst time is minimised by itself: if even that is too much, nothing fits
(`planner.solvers.shortage`). Then prices on the limit give bounds and choices, and what they leave open is
split (`planner.solvers.branching`), until the gap between the best choice that fits and the bound is small.
"""

import time

from planner.cost.problem import Problem
from planner.solvers.branching import branch
from planner.solvers.interning import Interner
from planner.solvers.pruning import Minimum
from planner.solvers.record import ROUNDING, Record, note
from planner.solvers.shortage import least_usage, make_fit, steepen

SMALL = 1e-3  # a relative gap that is narrowed only if there is time in plenty
PLENTY = 0.1  # of the seconds given: what narrowing may be expected to take
PER_NODE, PER_ENTRY = 1.5e-3, 3e-7  # seconds that narrowing takes, roughly


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
    cut = branch(record, SMALL if _work(problem) > PLENTY * seconds else ROUNDING, deadline)
    if record.best is None and record.floor < float("inf"):
        make_fit(record, deadline)
        if record.best is None:
            steepen(record, first, intern, free.order, deadline)
    return cut or ("the time was up" if time.monotonic() > deadline and record.gap > ROUNDING else "")


def _work(problem: Problem) -> float:
    """Seconds that narrowing the last gap takes, very roughly."""
    distinct = {id(table): table.size for table in (*problem.node_costs, *problem.edge_costs)}
    return PER_NODE * len(problem.node_costs) + PER_ENTRY * sum(distinct.values())
