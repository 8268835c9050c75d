"""A smallest conflict: as few usages as can be that no choice can keep within the limit, all at one time.

held apart      each usage needs at least its least bytes. At the time where these add up to most, the
                largest ones are taken until they pass the limit: no fewer do, and without any one of them
                the others need not
held together   where that proves nothing, the least of their sum over all choices, which the costs of
                forbidden strategies and pairs bound; parts of them are left out, larger ones first, as
                long as the rest passes the limit (Zeller and Hildebrandt's ddmin, IEEE TSE 2002)
"""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from planner.cost.problem import Problem, Usage
from planner.solvers.interning import Interner
from planner.solvers.shortage import least_usage

_SECONDS = 3.0  # for what is held together


@dataclasses.dataclass(frozen=True)
class Conflict:
    """at: the time. nodes, edges: whose usages these are, each with the least bytes that it needs by itself.
    bytes: that all of them need at least, more than the limit. smallest: whether none of them can be spared;
    false if there was no time to see."""

    at: int
    nodes: tuple[tuple[int, float], ...]
    edges: tuple[tuple[int, float], ...]
    bytes: float
    limit: float
    smallest: bool = True


@dataclasses.dataclass(frozen=True)
class _Held:
    """One usage. edge: whether it is of an edge."""

    usage: Usage
    edge: bool

    @property
    def least(self) -> float:
        return float(self.usage.bytes.min())


def conflict(problem: Problem, *, seconds: float = _SECONDS) -> Conflict | None:
    """What cannot be kept within the limit; None if that is not proven. seconds: for looking, roughly."""
    steps = np.zeros(problem.horizon + 1)
    for usage in (*problem.node_usages, *problem.edge_usages):
        steps[usage.first] += (least := float(usage.bytes.min()))
        steps[usage.last] -= least
    apart = np.cumsum(steps[:-1])
    at = int(apart.argmax()) if len(apart) else 0
    held = sorted(_alive(problem, at), key=lambda one: -one.least)
    if len(apart) and apart[at] > problem.usage_limit:
        return _conflict(problem, at, _largest(held, problem.usage_limit))
    return _together(problem, at, held, time.monotonic() + seconds)


def _alive(problem: Problem, at: int) -> list[_Held]:
    nodes = [_Held(usage, False) for usage in problem.node_usages]
    held = [*nodes, *(_Held(usage, True) for usage in problem.edge_usages)]
    return [one for one in held if one.usage.first <= at < one.usage.last and one.usage.bytes.max() > 0.0]


def _largest(held: Sequence[_Held], limit: float) -> list[_Held]:
    """As many of the largest as it takes to pass the limit. held: the largest first."""
    total = np.cumsum([one.least for one in held])
    return list(held[: int(np.searchsorted(total, limit, side="right")) + 1])


def _conflict(
    problem: Problem, at: int, held: Sequence[_Held], need: float | None = None, smallest: bool = True
) -> Conflict:
    nodes = tuple((one.usage.of, one.least) for one in held if not one.edge)
    edges = tuple((one.usage.of, one.least) for one in held if one.edge)
    need = sum(one.least for one in held) if need is None else need
    return Conflict(at, nodes, edges, need, problem.usage_limit, smallest)


def _together(problem: Problem, at: int, held: list[_Held], deadline: float) -> Conflict | None:
    need = _need(problem, at, held, deadline)
    if not need > problem.usage_limit:
        return None
    part = max(1, len(held) // 2)
    held = held[::-1]  # what matters least is left out first
    while part:
        start = 0
        while start < len(held) and time.monotonic() < deadline:
            rest = held[:start] + held[start + part :]
            without = _need(problem, at, rest, deadline)
            if without > problem.usage_limit:
                held, need = rest, without
            else:
                start += part
        part //= 2
    return _conflict(problem, at, held[::-1], need, time.monotonic() < deadline)


def _need(problem: Problem, at: int, held: Sequence[_Held], deadline: float) -> float:
    """A lower bound of what these usages take together, in any choice that is allowed."""
    used = {one.usage.of for one in held if one.edge}
    ties = {id(table): bool(np.isinf(table).any()) for table in problem.edge_costs}
    edges = [e for e, table in enumerate(problem.edge_costs) if e in used or ties[id(table)]]
    place = {e: i for i, e in enumerate(edges)}
    only = dataclasses.replace(
        problem,
        edges=tuple(problem.edges[e] for e in edges),
        edge_costs=tuple(problem.edge_costs[e] for e in edges),
        node_usages=tuple(one.usage for one in held if not one.edge),
        edge_usages=tuple(dataclasses.replace(one.usage, of=place[one.usage.of]) for one in held if one.edge),
    )
    return least_usage(only, at, Interner(), None, deadline)[0]
