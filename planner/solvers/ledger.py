"""Choices with their usage over time, and what changing a few nodes of one would cost and use."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from planner.cost.problem import Floats, Problem, Usage, cost_of, usage_over_time

Changes = Mapping[int, int]  # node -> its new strategy


@dataclasses.dataclass(frozen=True)
class Seen:
    """A choice that was met, with its cost (seconds) and its usage at every time (bytes)."""

    choice: tuple[int, ...]
    cost: float
    usage: Floats

    @property
    def peak(self) -> float:
        """The largest usage, bytes."""
        return float(self.usage.max(initial=0.0))


class Ties:
    """What belongs to each node and edge of a problem: found once, for all ledgers of it.

    edges_of[v]: the edges of node v. by_node, by_edge: their usages."""

    def __init__(self, problem: Problem) -> None:
        self.edges_of: list[list[int]] = [[] for _ in problem.node_costs]
        for edge, (u, w) in enumerate(problem.edges):
            self.edges_of[u].append(edge)
            if w != u:
                self.edges_of[w].append(edge)
        self.by_node = _by_owner(problem.node_usages)
        self.by_edge = _by_owner(problem.edge_usages)


def _by_owner(usages: Sequence[Usage]) -> dict[int, list[Usage]]:
    held: dict[int, list[Usage]] = {}
    for usage in usages:
        if usage.last > usage.first:
            held.setdefault(usage.of, []).append(usage)
    return held


def see(problem: Problem, choice: tuple[int, ...]) -> Seen:
    """A choice with what it costs and uses."""
    return Seen(choice, cost_of(problem, choice), usage_over_time(problem, choice))


class Ledger:
    """choice: one strategy per node. usage: bytes at every time. cost: seconds. ties: of the problem."""

    def __init__(self, problem: Problem, seen: Seen, ties: Ties) -> None:
        self.problem, self.ties = problem, ties
        self.choice = list(seen.choice)
        self.usage = seen.usage.copy()
        self.cost = seen.cost


def ledger_of(problem: Problem, choice: tuple[int, ...]) -> Ledger:
    """The ledger of a choice, where there is only one of the problem."""
    return Ledger(problem, see(problem, choice), Ties(problem))


def cost_change(ledger: Ledger, changes: Changes) -> float:
    """By how much the cost would rise."""
    problem, rise = ledger.problem, 0.0
    for v, c in changes.items():
        rise += float(problem.node_costs[v][c] - problem.node_costs[v][ledger.choice[v]])
    for edge in _touched(ledger, changes):
        u, w = problem.edges[edge]
        table = problem.edge_costs[edge]
        rise += float(table[_new(ledger, changes, u), _new(ledger, changes, w)])
        rise -= float(table[ledger.choice[u], ledger.choice[w]])
    return rise


def changed_usage(ledger: Ledger, changes: Changes) -> tuple[int, int, Floats]:
    """The usage after the changes, on the times [first, last) where it may differ."""
    moves: list[tuple[int, int, float]] = []
    for v, c in changes.items():
        for usage in ledger.ties.by_node.get(v, ()):
            moves.append((usage.first, usage.last, float(usage.bytes[c] - usage.bytes[ledger.choice[v]])))
    for edge in _touched(ledger, changes):
        u, w = ledger.problem.edges[edge]
        for usage in ledger.ties.by_edge.get(edge, ()):
            after = usage.bytes[_new(ledger, changes, u), _new(ledger, changes, w)]
            moves.append(
                (usage.first, usage.last, float(after - usage.bytes[ledger.choice[u], ledger.choice[w]]))
            )
    moves = [move for move in moves if move[2] != 0.0]
    if not moves:
        return 0, 0, np.zeros(0)
    first, last = min(move[0] for move in moves), max(move[1] for move in moves)
    after = ledger.usage[first:last].copy()
    for begin, end, more in moves:
        after[begin - first : end - first] += more
    return first, last, after


def excess_change(ledger: Ledger, changes: Changes) -> float:
    """By how much the bytes above the limit, summed over all times, would rise."""
    first, last, after = changed_usage(ledger, changes)
    limit = ledger.problem.usage_limit
    before = ledger.usage[first:last]
    return float(np.maximum(after - limit, 0.0).sum() - np.maximum(before - limit, 0.0).sum())


def fits(ledger: Ledger, changes: Changes) -> bool:
    """Whether the limit holds wherever the changes raise the usage."""
    first, last, after = changed_usage(ledger, changes)
    over = after > ledger.problem.usage_limit
    return not bool((over & (after > ledger.usage[first:last])).any())


def apply(ledger: Ledger, changes: Changes) -> None:
    """Makes the changes."""
    first, last, after = changed_usage(ledger, changes)
    ledger.cost += cost_change(ledger, changes)
    ledger.usage[first:last] = after
    for v, c in changes.items():
        ledger.choice[v] = c


def _touched(ledger: Ledger, changes: Changes) -> list[int]:
    return sorted({edge for v in changes for edge in ledger.ties.edges_of[v]})


def _new(ledger: Ledger, changes: Changes, v: int) -> int:
    return changes.get(v, ledger.choice[v])
