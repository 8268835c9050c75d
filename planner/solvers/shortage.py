"""When memory is short: proving that nothing fits, and making choices fit that nearly do."""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from planner.cost.problem import Choice, Problem
from planner.solvers.interning import Interner
from planner.solvers.ledger import Ledger, Seen, apply, cost_change, excess_change, fitting, see
from planner.solvers.network import network_of
from planner.solvers.pruning import minimise
from planner.solvers.repair import by_programme

STEEP = (
    100.0  # a price at which saving memory comes before cost: per byte, in cost per peak of the free minimum
)
ROUNDS = 2  # of steep prices
SWEEPS = 4
EASED = 3  # choices that are tried to be made to fit


def least_usage(problem: Problem, at: int, deadline: float) -> tuple[float, tuple[int, ...]]:
    """A lower bound of the usage at one time (bytes), which is one of the peak, and a choice close to it."""
    intern = Interner()
    free = {id(t): np.where(np.isfinite(t), 0.0, np.inf) for t in (*problem.node_costs, *problem.edge_costs)}
    bare = dataclasses.replace(
        problem,
        node_costs=tuple(free[id(t)] for t in problem.node_costs),
        edge_costs=tuple(free[id(t)] for t in problem.edge_costs),
    )
    prices = np.zeros(problem.horizon)
    prices[at] = 1.0
    network = network_of(bare, intern, prices)
    found = minimise(network, intern, deadline=deadline)
    return found.bound - network.rounding, found.choice


def nothing_fits(
    problem: Problem, seen: Sequence[Seen], bound: float, floor: float, deadline: float
) -> Choice:
    """The choice of the least peak found. bound: of the cost. floor: proven bound of the peak; inf if it is
    only known that nothing fits, and no more than the limit if not even that."""
    tried = [*seen, *_steep(problem, seen, deadline)] if np.isfinite(floor) else list(seen)
    least = min(tried, key=_by_peak)
    need = f"the least peak found is {least.peak:.6g} bytes, the limit {problem.usage_limit:.6g}"
    if floor <= problem.usage_limit:
        proven = "not proven to be impossible"
    else:
        proven = f"at least {floor:.6g} are needed" if np.isfinite(floor) else "none exists, as HiGHS proved"
    stopped = f"no choice fits: {need}; {proven}"
    return Choice(least.choice, least.cost, min(bound, least.cost), least.peak, stopped)


def made_to_fit(problem: Problem, seen: Sequence[Seen], deadline: float) -> tuple[list[Seen], bool]:
    """Choices that came of an effort to find one that fits, and whether there is none for certain."""
    allowed = sorted((one for one in seen if np.isfinite(one.cost)), key=_by_peak)[:EASED]
    made = [see(problem, eased(problem, one.choice, deadline)) for one in allowed]
    if fitting(problem, made):
        return made, False
    found = by_programme(problem, deadline)
    if found is None:
        return made, False
    return [*made, see(problem, found[0])], found[2]


def eased(problem: Problem, choice: tuple[int, ...], deadline: float) -> tuple[int, ...]:
    """The choice after switching single nodes while that lowers the bytes above the limit, each to the
    strategy that lowers them most for its cost."""
    ledger = Ledger(problem, choice)
    for _ in range(SWEEPS):
        moved = False
        for v, costs in enumerate(problem.node_costs):
            if time.monotonic() > deadline or ledger.usage.max(initial=0.0) <= problem.usage_limit:
                return tuple(ledger.choice)
            best, best_rate = -1, 0.0
            for a in range(len(costs)):
                less, more = -excess_change(ledger, {v: a}), cost_change(ledger, {v: a})
                rate = _rate(less, more)
                if rate > best_rate:
                    best, best_rate = a, rate
            if best >= 0:
                apply(ledger, {v: best})
                moved = True
        if not moved:
            break
    return tuple(ledger.choice)


def _rate(less: float, more: float) -> float:
    """Bytes saved per second spent; infinite where nothing is spent."""
    if less <= 0.0 or not np.isfinite(more):
        return 0.0
    return less / more if more > 0.0 else np.inf


def _steep(problem: Problem, seen: Sequence[Seen], deadline: float) -> list[Seen]:
    """Choices at steep prices on the worst times: next to the least peak, at a sensible cost."""
    intern = Interner()
    prices = np.zeros(problem.horizon)
    made: list[Seen] = []
    worst = seen[0].usage
    for _ in range(ROUNDS):
        at = int(worst.argmax())
        if prices[at] > 0.0 or time.monotonic() > deadline:
            break
        prices[at] = STEEP * seen[0].cost / seen[0].peak
        found = minimise(network_of(problem, intern, prices), intern, deadline=deadline)
        made.append(see(problem, found.choice))
        worst = made[-1].usage
    return made


def _by_peak(one: Seen) -> tuple[bool, float, float]:
    return not np.isfinite(one.cost), one.peak, one.cost
