"""Record: what a search has found so far, and the answer that makes, whether it came to its end or not."""

import functools

import numpy as np

from planner.cost.problem import Choice, Problem
from planner.solvers.ledger import Seen, Ties, see

ROUNDING = 1e-9  # a relative gap that is put down to floating point


class Record:
    """seen: the choices met. best: the cheapest that is allowed and keeps the limit; None if none was met.
    bound: proven, of the cost within the limit. floor: proven, of the peak, bytes; inf if it is only known
    that nothing fits."""

    def __init__(self, problem: Problem) -> None:
        tables = (*problem.node_costs, *problem.edge_costs)
        least = {id(table): float(table.min()) for table in {id(table): table for table in tables}.values()}
        self.problem = problem
        self.seen: list[Seen] = []
        self.bound = sum(least[id(table)] for table in tables)
        self.floor = 0.0
        self.best: Seen | None = None

    @functools.cached_property
    def ties(self) -> Ties:
        """Of the problem."""
        return Ties(self.problem)

    @property
    def gap(self) -> float:
        """By how much the best choice may be above the optimum, relative to its cost; inf without one."""
        best = self.best
        if best is None:
            return np.inf
        return max(best.cost - self.bound, 0.0) / best.cost if best.cost else 0.0

    def fits(self, one: Seen) -> bool:
        """Whether a choice is allowed and keeps the limit."""
        return bool(np.isfinite(one.cost)) and one.peak <= self.problem.usage_limit


def note(record: Record, choice: tuple[int, ...], bound: float = -np.inf) -> Seen:
    """Adds a choice, and a bound of the cost if it is higher than what is known."""
    record.bound = max(record.bound, bound)
    one = see(record.problem, choice)
    record.seen.append(one)
    if record.fits(one) and (record.best is None or one.cost < record.best.cost):
        record.best = one
    return one


def answer(record: Record, cut: str) -> Choice:
    """The best choice that fits, or else the one of the least peak. cut: why it was cut short, or ''; that is
    said even of the proven best, so that a search of many problems knows that it was interrupted."""
    if not record.seen:
        note(record, tuple(int(costs.argmin()) for costs in record.problem.node_costs))
    best, gap, end = record.best, record.gap, f", {cut}" if cut else ""
    if best is not None:
        bound = best.cost if gap <= ROUNDING else record.bound
        stopped = "exact" if gap <= ROUNDING else f"gap {100 * gap:.2g}%"
        return Choice(best.choice, best.cost, min(bound, best.cost), best.peak, stopped + end)
    least = min(record.seen, key=lambda one: (not np.isfinite(one.cost), one.peak, one.cost))
    stopped = _none_allowed(record) if np.isinf(least.cost) else _none_fits(record, least)
    return Choice(least.choice, least.cost, min(record.bound, least.cost), least.peak, stopped + end)


def _none_allowed(record: Record) -> str:
    proven = np.isinf(record.bound)
    return "no choice is allowed: " + ("every choice has a forbidden pair" if proven else "none was found")


def _none_fits(record: Record, least: Seen) -> str:
    need = f"the least peak found is {least.peak:.6g} bytes, the limit {record.problem.usage_limit:.6g}"
    if record.floor <= record.problem.usage_limit:
        return f"no choice fits: {need}; not proven to be impossible"
    proven = (
        f"at least {record.floor:.6g} are needed"
        if np.isfinite(record.floor)
        else "none exists, as was proven by search"
    )
    return f"no choice fits: {need}; {proven}"
