"""Branch and bound within memory: bounds hold, what is dropped is no loss, and the optimum is found."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.problem import Problem, Usage, cost_of, peak_of, usage_over_time
from planner.solvers import auto, branching, exhaustive, ilp
from planner.solvers.interning import Interner
from planner.solvers.passes import layout_of, lowest
from planner.solvers.planes import Planes, add, inside, top
from planner.solvers.priced import Priced
from planner.solvers.walks import Walks, walked

HORIZON = 6


def problem_at_random(seed: int, nodes: int = 6, forbid: float = 0.1) -> Problem:
    """Nodes of one to three strategies, some with two usages; edges, parallel or turned, some with copies."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 4, nodes)
    pairs = [(u, w) for u, w in itertools.combinations(range(nodes), 2) if draw.random() < 0.5]
    edges = [(u, w) if draw.random() < 0.7 else (w, u) for u, w in pairs]
    edges += [(w, u) for u, w in edges[:1]]
    tables = [draw.random((sizes[u], sizes[w])).round(1) for u, w in edges]
    tables = [np.where(draw.random(one.shape) < forbid, np.inf, one) for one in tables]

    def held(of: int, shape: tuple[int, ...]) -> Usage:
        first = int(draw.integers(0, HORIZON))
        return Usage(
            of, first, int(draw.integers(first, HORIZON + 1)), draw.integers(0, 9, shape).astype(float)
        )

    node_usages = [held(v, (int(k),)) for v, k in enumerate(sizes) for _ in range(draw.integers(0, 3))]
    edge_usages = [held(e, one.shape) for e, one in enumerate(tables) if draw.random() < 0.6]
    costs = tuple(draw.random(k).round(1) for k in sizes)
    return Problem(
        costs, tuple(edges), tuple(tables), tuple(node_usages), tuple(edge_usages), horizon=HORIZON
    )


def limited(problem: Problem, seed: int) -> Problem:
    """With a limit between the least peak of any choice and that of the optimum without one."""
    peaks = [peak_of(problem, c) for c in every(problem) if np.isfinite(cost_of(problem, c))]
    if not peaks:
        return dataclasses.replace(problem, usage_limit=10.0)
    most = peak_of(problem, exhaustive.solve(problem).choice)
    part = np.random.default_rng(seed).random()
    return dataclasses.replace(problem, usage_limit=float(np.floor(min(peaks) + part * (most - min(peaks)))))


def every(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(costs)) for costs in problem.node_costs)))


@pytest.mark.parametrize("most", [1e7, 0.0])  # entries of an elimination: everything, and nothing
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_the_optimum_within_memory_is_found_and_proven(most: float, seed: int) -> None:
    problem = limited(problem_at_random(seed), seed)
    best = exhaustive.solve(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branching, "MOST", most)
        found = auto.solve(problem)
    if not np.isfinite(best.cost):
        assert not np.isfinite(found.cost)
        return
    assert found.peak <= problem.usage_limit
    assert found.stopped == "exact"
    assert found.cost == found.lower_bound == pytest.approx(best.cost, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_values_are_those_of_the_best_choices_and_walks_are_below(seed: int) -> None:
    problem = dataclasses.replace(problem_at_random(seed, forbid=0.0), usage_limit=0.0)
    draw = np.random.default_rng(seed)
    intern = Interner()
    priced = Priced(problem, 1e3, intern)
    prices = draw.random(len(priced.times)) * (draw.random(len(priced.times)) < 0.6)
    left = {0: np.arange(len(problem.node_costs[0])) == 0} if seed % 2 else {}
    layout = layout_of(priced, intern, 1e9)
    assert layout is not None
    choices = [c for c in every(problem) if all(able[c[v]] for v, able in left.items())]
    values = [cost_of(problem, c) + prices @ usage_over_time(problem, c)[priced.times] for c in choices]
    made = lowest(layout, prices, left)
    assert made.value == pytest.approx(min(values), abs=1e-9)
    assert values[choices.index(made.choice)] == pytest.approx(min(values), abs=1e-9)
    low = walked(Walks(priced), prices, left, 30, np.inf)
    assert low.value <= min(values) + 1e-9
    assert low.choice in choices


def test_the_top_of_planes_is_where_they_cross() -> None:
    planes = Planes(1, 10.0, 10.0, 2)
    add(planes, (0,), 4.0, np.array([10.0, 0.0]))
    add(planes, (1,), 2.0, np.array([15.0, 0.0]))
    add(planes, (2,), 9.0, np.array([5.0, 0.0]))
    add(planes, (1,), 2.0, np.array([15.0, 0.0]))  # known
    which = inside(planes, {0: np.array([True, True, False])})
    assert which.tolist() == [0, 1]
    found = top(planes, which, 1.0)
    assert found.height == pytest.approx(4.0)
    assert found.prices[0] >= 0.4 - 1e-9
    assert found.prices[1] == 0.0
    assert not top(planes, np.array([1, 2]), 1.0).at_edge
    crossed = top(planes, np.array([1, 2]), 1.0)
    assert crossed.height == pytest.approx(5.5)
    assert crossed.weights.tolist() == pytest.approx([0.0, 0.5, 0.5])
    assert top(planes, np.array([1]), 1.0).at_edge


def test_a_gap_that_prices_leave_is_closed_by_splitting() -> None:
    # Two of three equal savings fit, where prices would have a half of each: 30 bytes at 10 or 25 each.
    costs = tuple(np.array([1.0, 0.0]) for _ in range(5))
    usages = tuple(Usage(v, 0, 1, np.array([1.0, 4.0 + v])) for v in range(5))
    edges, tables = ((0, 1),), (np.zeros((2, 2)),)
    problem = Problem(costs, edges, tables, usages, usage_limit=15.0)
    found = auto.solve(problem)
    assert found.stopped == "exact"
    assert found.cost == ilp.solve(problem).cost == 3.0
