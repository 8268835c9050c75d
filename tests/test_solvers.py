"""The solvers against each other: elimination = HiGHS = all choices, with and without a memory limit."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.problem import FORBIDDEN, Problem, Usage, cost_of, peak_of
from planner.errors import InputError
from planner.solvers import auto, branching, elimination, exhaustive, ilp, passes, pruning, shortage
from planner.solvers.bounds import Messages, walk
from planner.solvers.folding import fold, unfold
from planner.solvers.interning import Interner
from planner.solvers.minplus import min_plus
from planner.solvers.network import network_of, value_of
from planner.solvers.orders import RULES, greedy_order


def problem_at_random(seed: int, *, forbid: float = 0.1, whole: bool = False) -> Problem:
    """At most 7 nodes of 1 to 4 strategies; parallel edges, edges to a lower node or to oneself occur."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 8))
    sizes = draw.integers(1, 5, count)
    edges = tuple((int(u), int(w)) for u, w in draw.integers(0, count, (int(draw.integers(0, 12)), 2)))

    def table(*shape: int) -> np.ndarray:
        costs = draw.integers(0, 50, shape).astype(float) if whole else draw.random(shape)
        return np.where(draw.random(shape) < forbid, FORBIDDEN, costs)

    horizon = 6
    usages = []
    for v in range(count):
        first, last = sorted(int(t) for t in draw.integers(0, horizon + 1, 2))
        usages.append(Usage(v, first, last, draw.integers(0, 10, sizes[v]).astype(float)))
    on_edges = []
    for e in range(0, len(edges), 3):
        first, last = sorted(int(t) for t in draw.integers(0, horizon + 1, 2))
        shape = (sizes[edges[e][0]], sizes[edges[e][1]])
        on_edges.append(Usage(e, first, last, draw.integers(0, 10, shape).astype(float)))
    costs = tuple(np.where(np.arange(k) == 0, 1.0, table(k)) for k in sizes)
    tables = tuple(table(sizes[u], sizes[w]) for u, w in edges)
    return Problem(costs, edges, tables, tuple(usages), tuple(on_edges), np.inf, horizon)


def with_limit(problem: Problem, seed: int) -> Problem:
    """A limit that some allowed choice, drawn at random, just keeps; unchanged if none is allowed."""
    draw = np.random.default_rng(seed)
    for _ in range(50):
        planted = [int(draw.integers(len(costs))) for costs in problem.node_costs]
        if np.isfinite(cost_of(problem, planted)):
            return dataclasses.replace(problem, usage_limit=peak_of(problem, planted))
    return problem


def ladder(layers: int, size: int, seed: int = 0) -> Problem:
    """Identical layers of four nodes: two rails with a rung, as forward and backward ops of a train step."""
    draw = np.random.default_rng(seed)
    costs = [draw.random(size) for _ in range(4)]
    tables = [draw.random((size, size)) for _ in range(6)]
    edges: list[tuple[int, int]] = []
    held: list[np.ndarray] = []
    for layer in range(layers):
        a, b, c, d = range(4 * layer, 4 * layer + 4)
        edges += [(a, b), (b, c), (c, d), (a, c)]
        held += tables[:4]
        if layer:
            edges += [(a - 4, a), (d - 4, d)]
            held += tables[4:]
    return Problem(tuple(costs * layers), tuple(edges), tuple(held))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_without_a_limit_every_solver_finds_the_optimum(seed: int) -> None:
    problem = problem_at_random(seed)
    best = exhaustive.solve(problem)
    for found in (elimination.solve(problem), auto.solve(problem), *_by_highs(problem, best.cost)):
        assert found.cost == pytest.approx(best.cost, rel=1e-9) or found.cost == best.cost
        assert found.lower_bound <= found.cost
        assert found.stopped == (
            "exact" if np.isfinite(best.cost) else "no choice is allowed: every choice has a forbidden pair"
        )


def _by_highs(problem: Problem, cost: float) -> list:
    return [ilp.solve(problem)] if np.isfinite(cost) else []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_with_a_limit_the_optimum_is_found_or_bounded(seed: int) -> None:
    problem = with_limit(problem_at_random(seed), seed)
    best = exhaustive.solve(problem)
    if not np.isfinite(best.cost):
        return
    found = auto.solve(problem)
    assert found.peak <= problem.usage_limit
    assert found.lower_bound <= best.cost * (1 + 1e-9)
    assert found.cost == cost_of(problem, found.choice)
    if found.stopped == "exact":
        assert found.cost == pytest.approx(best.cost, rel=1e-9)
    by_highs = ilp.solve(problem)
    assert by_highs.cost == pytest.approx(best.cost, rel=1e-6)
    assert by_highs.peak <= problem.usage_limit * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_whole_numbers_stay_exact(seed: int) -> None:
    problem = problem_at_random(seed, forbid=0.0, whole=True)
    assert auto.solve(problem).cost == exhaustive.solve(problem).cost
    network = network_of(problem, Interner())
    assert network.rounding == 0.0
    found = pruning.minimise(network, Interner())
    assert (found.value, found.bound) == (exhaustive.solve(problem).cost,) * 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_and_excesses_never_exceed_what_they_bound(seed: int) -> None:
    problem = problem_at_random(seed)
    network = network_of(problem, Interner())
    if any(np.isinf(costs).all() for costs in network.unary):
        return
    state = Messages(network, Interner())
    walk(state)
    every = list(itertools.product(*(range(k) for k in network.sizes)))
    values = np.array([value_of(network, choice) for choice in every])
    for _ in range(5):
        walk(state)
        assert state.bound <= values.min() + 1e-9
        for v in state.nodes:
            for a in range(network.sizes[v]):
                least = min((values[i] for i, choice in enumerate(every) if choice[v] == a), default=np.inf)
                assert state.base + state.excess[v][a] <= least + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_folding_keeps_the_minimum(seed: int) -> None:
    problem = problem_at_random(seed, forbid=0.0)
    intern = Interner()
    network = network_of(problem, intern)
    folded = fold(network, intern)
    inner = pruning.minimise(folded.network, intern)
    choice = unfold(folded, inner.choice)
    assert value_of(network, choice) == inner.value
    assert inner.value == pytest.approx(exhaustive.solve(problem).cost, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_the_least_usage_is_a_bound_of_the_peak(seed: int) -> None:
    problem = problem_at_random(seed)
    every = itertools.product(*(range(len(costs)) for costs in problem.node_costs))
    peaks = [peak_of(problem, choice) for choice in every if np.isfinite(cost_of(problem, choice))]
    for at in range(problem.horizon):
        bound, _ = shortage.least_usage(problem, at, Interner(), None, np.inf)
        assert bound <= min(peaks, default=np.inf) + 1e-9


@pytest.mark.parametrize("rule", RULES)
def test_every_order_gives_the_same_minimum(rule: str) -> None:
    intern = Interner()
    network = network_of(ladder(5, 4), intern)
    order = greedy_order(network, intern, rule)
    assert order is not None
    found = elimination.eliminate(network, order, intern)
    assert found.value == value_of(network, found.choice)
    assert found.value == pruning.minimise(network, intern).value


def test_min_plus_in_blocks_equals_min_plus_at_once() -> None:
    draw = np.random.default_rng(0)
    one, other, third = draw.random((40, 90, 1, 1)), draw.random((40, 1, 80, 5)), draw.random((40, 90, 80, 1))
    whole = (one + other + third).min(axis=0)
    assert np.allclose(min_plus([one, other, third], (40, 90, 80, 5)), whole, rtol=1e-15)


def test_repeated_layers_are_worked_out_once() -> None:
    counts = []
    for layers in (12, 48):
        intern = Interner()
        network = network_of(ladder(layers, 6), intern)
        order = greedy_order(network, intern, "degree")
        assert order is not None
        found = elimination.eliminate(network, order, intern)
        assert found.products + found.recalled == 4 * layers
        counts.append(found.products)
    assert counts[1] <= counts[0] + 4


def test_same_input_same_choice() -> None:
    problem = with_limit(ladder(10, 5), 3)
    assert auto.solve(problem, seed=1) == auto.solve(problem, seed=1)


def test_starts_are_never_lost() -> None:
    problem = ladder(10, 5)
    start = tuple(1 for _ in problem.node_costs)
    tight = dataclasses.replace(
        problem,
        node_usages=tuple(
            Usage(v, 0, 1, np.where(np.arange(5) == 1, 0.0, 1.0)) for v in range(len(problem.node_costs))
        ),
        usage_limit=0.0,
    )
    found = auto.solve(tight, starts=[start])
    assert found.choice == start
    assert found.peak == 0.0


def test_an_interrupted_search_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(state: Messages) -> None:
        del state
        raise KeyboardInterrupt

    problem = ladder(6, 5)
    problem = dataclasses.replace(
        problem,
        edges=(*problem.edges, (0, 23), (1, 12)),
        edge_costs=(*problem.edge_costs, *problem.edge_costs[:2]),
    )
    best = auto.solve(problem)
    monkeypatch.setattr(pruning, "AT_ONCE", 0.0)
    monkeypatch.setattr(pruning, "AT_ONCE_PER_NODE", 0.0)
    monkeypatch.setattr(pruning, "walk", interrupt)
    found = auto.solve(problem, starts=[tuple(0 for _ in problem.node_costs)])
    assert found.lower_bound <= best.cost <= found.cost <= cost_of(problem, [0] * 24)
    assert found.stopped.startswith("gap ")
    assert found.stopped.endswith(", interrupted")


def test_an_interrupted_search_within_memory_gives_a_choice_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = ladder(6, 5)
    usages = tuple(Usage(v, 0, 1, np.arange(5.0)[::-1]) for v in range(24))
    problem = dataclasses.replace(base, node_usages=usages, usage_limit=30.0)
    start = (4,) * 24
    best = auto.solve(problem)
    calls = []

    def interrupt(*given, **named):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return passes.lowest(*given, **named)

    monkeypatch.setattr(branching, "lowest", interrupt)
    found = auto.solve(problem, starts=[start])
    assert len(calls) == 2
    assert found.peak <= 30.0
    assert found.lower_bound <= best.cost * (1 + 1e-9)
    assert found.cost <= cost_of(problem, start)
    assert found.stopped.endswith(", interrupted")


def test_no_time_at_all_still_gives_a_choice() -> None:
    problem = ladder(6, 5)
    found = auto.solve(problem, seconds=0.0)
    assert len(found.choice) == 24
    assert found.lower_bound <= found.cost


def test_when_nothing_fits_the_least_peak_comes_back_with_its_bound() -> None:
    usages = tuple(Usage(v, 0, 2, np.array([4.0, 3.0, 9.0, 5.0, 6.0])) for v in range(8))
    problem = dataclasses.replace(ladder(2, 5), node_usages=usages, usage_limit=20.0, horizon=2)
    found = auto.solve(problem)
    assert found.peak == 24.0
    assert found.stopped == (
        "no choice fits: the least peak found is 24 bytes, the limit 20; at least 24 are needed"
    )


def test_too_many_choices_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"^5\.96e\+16 choices are too many to try one by one; use the solver 'auto'\.$"
    ):
        exhaustive.solve(ladder(6, 5))
