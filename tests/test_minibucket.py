"""Mini-buckets: never above the minimum, whatever the budget, and equal to it where the budget is enough."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_solvers import ladder, problem_at_random

from planner.cost.problem import Problem, cost_of
from planner.solvers import elimination, exhaustive
from planner.solvers.elimination import simple_bound
from planner.solvers.interning import Interner
from planner.solvers.minibucket import bounded
from planner.solvers.network import network_of
from planner.solvers.orders import greedy_order


def grid(side: int, size: int, seed: int) -> Problem:
    """Nodes on a square, each tied to its neighbours: the width is the side."""
    draw = np.random.default_rng(seed)
    at = np.arange(side * side).reshape(side, side)
    edges = [*zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), *zip(at[:-1].flat, at[1:].flat, strict=True)]
    return Problem(
        tuple(draw.random(size) for _ in range(side * side)),
        tuple((int(u), int(w)) for u, w in edges),
        tuple(draw.random((size, size)) for _ in edges),
    )


def by_mini_buckets(problem: Problem, entries: float):
    intern = Interner()
    network = network_of(problem, intern)
    order = greedy_order(network, intern, "weight")
    assert order is not None
    return bounded(network, order, intern, entries=entries), network


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1.0, 6.0, 20.0, 1e9]))
def test_it_bounds_the_minimum_of_small_problems(seed: int, entries: float) -> None:
    problem = problem_at_random(seed)
    best = exhaustive.solve(problem).cost
    found, network = by_mini_buckets(problem, entries)
    assert found.value <= best * (1 + 1e-12) + network.rounding
    assert found.value >= simple_bound(network) * (1 - 1e-9)
    if entries == 1e9 and np.isfinite(best):
        assert found.value == pytest.approx(best)
        assert cost_of(problem, found.choice) == pytest.approx(best)


def test_a_larger_budget_gives_a_tighter_bound_and_all_of_it_the_minimum() -> None:
    problem = grid(7, 4, 0)
    best = elimination.solve(problem)
    assert best.stopped == "exact"
    found = {entries: by_mini_buckets(problem, entries)[0] for entries in (16.0, 4.0**4, 4.0**6, 1e9)}
    values = [one.value for one in found.values()]
    assert values == sorted(values)
    assert 0.85 * best.cost < values[0] < values[1] < best.cost
    assert values[-1] == pytest.approx(best.cost)
    for one in found.values():
        assert best.cost <= cost_of(problem, one.choice) * (1 + 1e-12) < 1.25 * best.cost


def test_elimination_that_is_too_large_still_gives_a_bound_and_a_choice(monkeypatch) -> None:
    problem = grid(7, 4, 1)
    best = elimination.solve(problem)
    monkeypatch.setattr(elimination, "LARGEST_TABLE", 4.0**4)
    found = elimination.solve(problem)
    network = network_of(problem, Interner())
    greedy = tuple(int(costs.argmin()) for costs in network.unary)
    assert found.stopped == "its tables have over 3e+02 entries; bounded by mini-buckets"
    assert simple_bound(network) < 0.85 * best.cost < found.lower_bound < best.cost
    assert best.cost <= found.cost < cost_of(problem, greedy)
    assert elimination.solve(ladder(5, 4)).stopped == "exact"
