"""Smallest conflicts: what is named needs more than the limit, and without any one of it that is not so."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_solvers import problem_at_random

from planner.cost.problem import FORBIDDEN, Problem, Usage, cost_of, usage_over_time
from planner.solvers.conflict import Conflict, conflict


def only(problem: Problem, found: Conflict, without: int = -1) -> Problem:
    """The problem with no other usages than those of the conflict, less one of them."""
    names = [("node", v) for v, _ in found.nodes] + [("edge", e) for e, _ in found.edges]
    left = [name for i, name in enumerate(names) if i != without]
    kept = {
        kind: tuple(u for u in usages if (kind, u.of) in left and u.first <= found.at < u.last)
        for kind, usages in (("node", problem.node_usages), ("edge", problem.edge_usages))
    }
    return dataclasses.replace(problem, node_usages=kept["node"], edge_usages=kept["edge"])


def least(problem: Problem, at: int) -> float:
    """The least usage at one time, of all choices that are allowed."""
    every = itertools.product(*(range(len(costs)) for costs in problem.node_costs))
    return min(
        (float(usage_over_time(problem, x)[at]) for x in every if np.isfinite(cost_of(problem, x))),
        default=np.inf,
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 1.5))
def test_a_conflict_is_one_and_nothing_in_it_can_be_spared(seed: int, part: float) -> None:
    free = problem_at_random(seed, forbid=0.3)
    peak = min(least(free, at) for at in range(free.horizon))
    worst = max(least(free, at) for at in range(free.horizon))
    if not np.isfinite(peak) or worst == 0.0:
        return
    problem = dataclasses.replace(free, usage_limit=float(np.floor(part * worst)))
    found = conflict(problem)
    if part >= 1.0:
        assert found is None
    if found is None:
        return
    assert found.smallest
    assert found.limit < found.bytes <= least(only(problem, found), found.at) + 1e-6
    by_themselves = [size for _, size in (*found.nodes, *found.edges)]
    for spared in range(len(by_themselves)):
        if sum(by_themselves) > found.limit:
            assert sum(by_themselves) - by_themselves[spared] <= found.limit
            continue
        assert least(only(problem, found, spared), found.at) <= found.limit


def test_the_fewest_are_named() -> None:
    held = (8.0, 1.0, 5.0, 4.0, 1.0)
    problem = Problem(
        (np.zeros(2),) * 5,
        (),
        (),
        tuple(Usage(v, 0, 1, np.array([b, 9.0])) for v, b in enumerate(held)),
        (),
        14.0,
    )
    found = conflict(problem)
    assert found is not None
    assert (found.nodes, found.edges, found.bytes) == (((0, 8.0), (2, 5.0), (3, 4.0)), (), 17.0)
    assert conflict(dataclasses.replace(problem, usage_limit=19.0)) is None


def test_what_only_forbidden_pairs_hold_up_is_found() -> None:
    """Each of two nodes can do with 1 byte, but not both: the pair is forbidden."""
    costs = np.zeros(2)
    pair = np.array([[FORBIDDEN, 0.0], [0.0, 0.0]])
    usages = tuple(Usage(v, 0, 1, np.array([1.0, 6.0])) for v in range(3))
    problem = Problem((costs,) * 3, ((0, 1),), (pair,), usages, (), 6.5)
    found = conflict(problem)
    assert found is not None
    assert ([v for v, _ in found.nodes], found.bytes, found.smallest) == ([0, 1], pytest.approx(7.0), True)


def test_a_copy_on_an_edge_can_be_in_it() -> None:
    problem = Problem(
        (np.zeros(1),) * 2, ((0, 1),), (np.zeros((1, 1)),), (Usage(0, 0, 2, np.array([3.0])),),
        (Usage(0, 1, 2, np.array([[4.0]])),), 6.0, 2,
    )  # fmt: skip
    found = conflict(problem)
    assert found is not None
    assert (found.at, found.nodes, found.edges, found.bytes) == (1, ((0, 3.0),), ((0, 4.0),), 7.0)
