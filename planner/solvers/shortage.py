"""When memory is short: proving that nothing fits, and making choices fit that nearly do."""

import dataclasses
import time

import numpy as np

from planner.cost.problem import Problem
from planner.solvers.interning import Interner
from planner.solvers.ledger import Seen, apply, cost_change, excess_change, ledger_of
from planner.solvers.network import network_of
from planner.solvers.orders import Order
from planner.solvers.pruning import minimise, unless_interrupted
from planner.solvers.record import ROUNDING, Record, note
from planner.solvers.repair import by_programme

STEEP = (
    100.0  # a price at which saving memory comes before cost: per byte, in cost per peak of the free minimum
)
ROUNDS = 2  # of steep prices
SWEEPS = 4
EASED = 3  # choices that are tried to be made to fit


def least_usage(
    problem: Problem, at: int, intern: Interner, order: Order | None, deadline: float
) -> tuple[float, tuple[int, ...]]:
    """A lower bound of the usage at one time (bytes), which is one of the peak, and a choice close to it.
    order: as `minimise` takes it."""
    free = {id(t): np.where(np.isfinite(t), 0.0, np.inf) for t in (*problem.node_costs, *problem.edge_costs)}
    bare = dataclasses.replace(
        problem,
        node_costs=tuple(free[id(t)] for t in problem.node_costs),
        edge_costs=tuple(free[id(t)] for t in problem.edge_costs),
    )
    prices = np.zeros(problem.horizon)
    prices[at] = 1.0
    network = network_of(bare, intern, prices)
    found = unless_interrupted(minimise(network, intern, order=order, deadline=deadline))
    return found.bound - network.rounding, found.choice


def make_fit(record: Record, deadline: float) -> None:
    """An effort to find a choice that fits, or to prove that there is none."""
    allowed = sorted((one for one in record.seen if np.isfinite(one.cost)), key=lambda one: one.peak)
    for one in allowed[:EASED]:
        note(record, eased(record.problem, one.choice, deadline))
    if record.best is not None:
        return
    found = by_programme(record.problem, deadline)
    if found is not None:
        note(record, found.choice)
        if found.stopped.startswith("no choice fits"):
            record.floor = np.inf


def steepen(record: Record, first: Seen, intern: Interner, order: Order | None, deadline: float) -> None:
    """Notes choices at steep prices on the worst times: next to the least peak, at a sensible cost."""
    problem = record.problem
    prices = np.zeros(problem.horizon)
    worst = first.usage
    for _ in range(ROUNDS):
        at = int(worst.argmax())
        if prices[at] > 0.0 or time.monotonic() > deadline:
            break
        prices[at] = STEEP * first.cost / first.peak
        network = network_of(problem, intern, prices)
        found = unless_interrupted(minimise(network, intern, order=order, deadline=deadline))
        last = note(record, found.choice)
        if last.peak <= record.floor * (1.0 + ROUNDING):  # no choice has less
            break
        worst = last.usage


def eased(problem: Problem, choice: tuple[int, ...], deadline: float) -> tuple[int, ...]:
    """The choice after switching single nodes while that lowers the bytes above the limit, each to the
    strategy that lowers them most for its cost."""
    ledger = ledger_of(problem, choice)
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
