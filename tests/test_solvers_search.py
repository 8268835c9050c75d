"""The search for large problems within memory: exact reductions, sound bounds, always a choice that fits."""

import dataclasses
import itertools
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.problem import FORBIDDEN, Problem, Usage, cost_of, peak_of, usage_over_time
from planner.solvers import ascent, auto, exhaustive, forest, messages, moves, relink
from planner.solvers import search as search_module
from planner.solvers.arrays import arrays_of, maximal_times
from planner.solvers.dominance import undominated
from planner.solvers.interning import Interner
from planner.solvers.mapping import Reduced, reduced, restore, translate
from planner.solvers.quick import quick, suits
from planner.solvers.record import ROUNDING, Record, answer
from planner.solvers.search import search
from planner.solvers.shrink import shrunk
from planner.solvers.warmup import compiled


def tight(seed: int, count: int, *, most: int = 5, mapped: float = 0.3) -> Problem:
    """Edges to near nodes, some of them maps, some parallel, some to a lower node; live intervals that may be
    empty; and the limit that a planted choice just keeps."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, most + 1, count)
    planted = [int(draw.integers(k)) for k in sizes]
    edges, tables = [], []
    for w in range(1, count):
        for u in {int(u) for u in draw.integers(max(0, w - 8), w, 2)}:
            table = draw.integers(0, 50, (sizes[u], sizes[w])).astype(float)
            if draw.random() < mapped:
                partner = draw.integers(0, sizes[w], sizes[u])
                partner[planted[u]] = planted[w]
                table = np.where(np.arange(sizes[w]) == partner[:, None], table, FORBIDDEN)
            elif draw.random() < 0.3:
                table = np.where(draw.random(table.shape) < 0.3, FORBIDDEN, table)
                table[planted[u], planted[w]] = 7.0
            turned = draw.random() < 0.2
            edges.append((w, u) if turned else (u, w))
            tables.append(table.T.copy() if turned else table)
            if draw.random() < 0.1:
                edges.append((u, w))
                tables.append(draw.integers(0, 9, table.shape).astype(float))
    horizon = count + 4
    usages = []
    for v, k in enumerate(sizes):
        first, last = (int(t) for t in (v, v + draw.integers(0, 5)))
        usages.append(Usage(v, first, last, draw.integers(1, 100, k).astype(float)))
    costs = tuple(draw.integers(0, 20, k).astype(float) for k in sizes)
    problem = Problem(costs, tuple(edges), tuple(tables), tuple(usages), (), np.inf, horizon)
    assert np.isfinite(cost_of(problem, planted))
    return dataclasses.replace(problem, usage_limit=peak_of(problem, planted))


def found_by_search(problem: Problem, seconds: float = 20.0, seed: int = 0):
    record = Record(problem)
    cut = search(record, [], seed, time.monotonic() + seconds)
    return answer(record, cut)


def choices(problem: Problem):
    return itertools.product(*(range(len(costs)) for costs in problem.node_costs))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_reduction_keeps_an_optimum_and_what_every_choice_costs_and_uses(seed: int) -> None:
    problem = tight(seed, 6, most=3)
    whole = shrunk(problem, Interner())
    assert whole is not None
    best = exhaustive.solve(problem)
    small = exhaustive.solve(whole.problem)
    assert small.cost == best.cost
    for choice in itertools.islice(choices(whole.problem), 200):
        old = restore(whole, choice)
        assert cost_of(problem, old) == cost_of(whole.problem, choice)
        assert np.array_equal(usage_over_time(problem, old), usage_over_time(whole.problem, choice))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_folding_loses_no_choice_that_is_allowed(seed: int) -> None:
    problem = tight(seed, 6, most=3)
    whole = reduced(problem, Interner())
    assert isinstance(whole, Reduced)
    allowed = [one for one in choices(problem) if np.isfinite(cost_of(problem, one))]
    for one in allowed:
        inner = translate(whole, one)
        assert inner is not None
        assert restore(whole, inner) == one
    assert len(allowed) == sum(np.isfinite(cost_of(whole.problem, one)) for one in choices(whole.problem))


def test_what_cannot_be_is_found_by_reduction() -> None:
    closed = np.array([[FORBIDDEN, FORBIDDEN], [1.0, FORBIDDEN]])
    problem = Problem(
        (np.zeros(2), np.zeros(2)), ((0, 1), (0, 1)), (closed, closed[::-1].copy()), (), (), 1.0
    )
    assert reduced(problem, Interner()) is None
    assert found_by_search(problem).stopped == "no choice is allowed: every choice has a forbidden pair"


def test_the_first_of_equal_strategies_stays() -> None:
    problem = Problem(
        (np.array([2.0, 1.0, 1.0, 3.0]),), (), (), (Usage(0, 0, 1, np.array([1.0, 4.0, 4.0, 0.0])),)
    )
    assert undominated(problem, Interner())[0].tolist() == [0, 1, 3]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_whatever_is_alive_is_alive_at_a_maximal_time(seed: int) -> None:
    draw = np.random.default_rng(seed)
    spans = np.sort(draw.integers(0, 12, (int(draw.integers(1, 9)), 2)), axis=1)
    spans = spans[spans[:, 1] > spans[:, 0]]
    alive = {t: {i for i, (a, b) in enumerate(spans) if a <= t < b} for t in range(12)}
    times = maximal_times(spans).tolist()
    assert all(any(alive[t] <= alive[m] for m in times) for t in alive if alive[t])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_small_problems_are_solved_or_bounded(seed: int) -> None:
    problem = tight(seed, 7, most=4)
    best = exhaustive.solve(problem)
    found = found_by_search(problem)
    assert found.peak <= problem.usage_limit
    assert found.lower_bound <= best.cost <= found.cost == cost_of(problem, found.choice)
    if found.stopped == "exact":
        assert found.cost == best.cost


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6))
def test_a_planted_choice_is_never_missed_altogether(seed: int) -> None:
    problem = tight(seed, 400)
    assert suits(problem)
    found = found_by_search(problem, seed=seed)
    assert found.peak <= problem.usage_limit
    assert np.isfinite(found.cost)
    assert found.lower_bound <= found.cost


def test_the_same_seed_goes_the_same_way() -> None:
    problem = tight(5, 60)
    assert found_by_search(problem, 300.0, 3) == found_by_search(problem, 300.0, 3)


def test_an_interrupted_search_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight(7, 80)
    calls = []

    def interrupt(*given) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        ascent.step(*given)

    monkeypatch.setattr(search_module, "step", interrupt)
    monkeypatch.setattr(auto, "COMPILED_SIZE", 1)
    found = auto.solve(problem, seconds=60.0)
    assert len(calls) == 3
    assert found.peak <= problem.usage_limit
    assert found.lower_bound <= found.cost == cost_of(problem, found.choice)
    assert found.stopped.endswith(", interrupted")


def test_starts_are_kept() -> None:
    problem = tight(11, 40)
    first = found_by_search(problem)
    again = auto.solve(problem, seconds=0.0, starts=[first.choice])
    assert again.cost <= first.cost


@pytest.mark.parametrize("seed", range(3))
def test_edges_cost_in_arrays_what_they_cost_in_tables(seed: int) -> None:
    problem = tight(seed, 30)
    whole = shrunk(problem, Interner())
    assert whole is not None
    arrays = arrays_of(whole.problem, Interner())
    draw = np.random.default_rng(seed)
    for _ in range(20):
        choice = np.array([draw.integers(len(costs)) for costs in whole.problem.node_costs])
        cost = cost_of(whole.problem, choice.tolist())
        if np.isfinite(cost):
            assert moves.cost_of(arrays, choice) == cost
        fits = bool((moves.used_by(arrays, choice) <= arrays.room).all())
        assert fits == (peak_of(whole.problem, choice.tolist()) <= problem.usage_limit)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_a_quick_choice_that_fits_is_only_made_cheaper(seed: int) -> None:
    problem = tight(seed, 60, mapped=0.0)
    whole = reduced(problem, Interner())
    assert whole is not None
    first = quick(whole.problem, lambda: True)
    last = quick(whole.problem, lambda: False)
    if np.isfinite(cost_of(whole.problem, first)) and peak_of(whole.problem, first) <= problem.usage_limit:
        assert cost_of(whole.problem, last) <= cost_of(whole.problem, first)
        assert peak_of(whole.problem, last) <= problem.usage_limit


def test_a_search_without_time_has_a_choice() -> None:
    problem = tight(3, 60, mapped=0.0)
    record = Record(problem)
    assert search(record, [], 0, time.monotonic()) == "the time was up"
    assert record.seen


def test_kernels_are_compiled_beforehand_with_the_types_they_are_called_with() -> None:
    assert not compiled(threading.Event(), time.monotonic())
    assert compiled(threading.Event())
    kernels = (
        *(forest.replant, messages.priced, messages.walk, moves.cost_of, moves.descend, moves.ease),
        *(moves.used_by, relink.grouped, relink.rescued),
    )
    before = [len(one.signatures) for one in kernels]
    found_by_search(tight(2, 60))
    assert [len(one.signatures) for one in kernels] == before


def test_prices_are_put_on_the_first_worst_time_of_each_stretch() -> None:
    assert ascent.worst(np.array([-1.0, 3.0, 5.0, 5.0, 0.0, 2.0, -4.0, 1.0, 2.0])).tolist() == [2, 5, 8]
    assert ascent.worst(np.array([-1.0, 0.0])).tolist() == []


def test_the_spell_that_closed_most_of_the_gap_comes_next() -> None:
    whole = shrunk(tight(4, 60), Interner())
    assert whole is not None
    state = ascent.Ascent(arrays_of(whole.problem, Interner()))
    target, runs = found_by_search(whole.problem).cost, []
    while state.spells < 12:
        before = state.spells, state.spell, list(state.rates)
        ascent.step(state, target)
        if state.spells > before[0]:
            runs.append(before[1])
            assert state.rates[state.spell] == max(state.rates)
    assert runs[: len(ascent.SPELLS)] == list(range(len(ascent.SPELLS)))
    assert state.bound <= target * (1.0 + ROUNDING)
