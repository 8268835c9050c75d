"""The random walk: it prices moves as the tables do, samples what Metropolis promises, keeps the limit."""

import dataclasses
import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_solvers import problem_at_random, with_limit

from planner.cost.problem import Problem, Usage, cost_of, peak_of, usage_over_time
from planner.solvers import exhaustive, mcmc
from planner.solvers.evaluator import Additive
from planner.solvers.ledger import Changes
from planner.solvers.mcmc import walk
from planner.solvers.proposals import block, mixed, single


def layers(count: int, size: int = 4) -> Problem:
    """A chain in which neighbours that differ pay, and the last strategy is the best one by a little."""
    costs = tuple(np.linspace(1.0, 0.9, size) for _ in range(count))
    differ = 1.0 - np.eye(size)
    return Problem(costs, tuple((v, v + 1) for v in range(count - 1)), (differ,) * (count - 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_moves_are_priced_as_the_tables_say(seed: int) -> None:
    problem = with_limit(problem_at_random(seed), seed)
    draw = random.Random(seed)
    start = tuple(0 for _ in problem.node_costs)
    evaluator = Additive(problem, start)
    propose = mixed(single(evaluator.unary), block(evaluator.unary, evaluator.near), 0.5)
    for _ in range(20):
        changes = propose(evaluator.choice, draw)
        after = tuple(changes.get(v, c) for v, c in enumerate(evaluator.choice))
        price, allowed, before = evaluator.price(changes), evaluator.allows(changes), tuple(evaluator.choice)
        if evaluator.over > 0.0:
            over = np.maximum(usage_over_time(problem, before) - problem.usage_limit, 0.0).sum()
            assert evaluator.over == pytest.approx(over)
        elif math.isfinite(cost_of(problem, after)):
            assert price == pytest.approx(cost_of(problem, after), abs=1e-9)
        else:
            assert price > sum(float(costs[np.isfinite(costs)].max()) for costs in problem.node_costs)
        if evaluator.over == 0.0:
            assert peak_of(problem, before) <= problem.usage_limit
            assert allowed == (peak_of(problem, after) <= problem.usage_limit)
        if allowed:
            evaluator.move(changes)
            assert tuple(evaluator.choice) == after
            assert evaluator.cost == pytest.approx(price, rel=1e-9)


def test_single_moves_sample_the_distribution_of_metropolis() -> None:
    """How often each state is the current one, against exp(-cost / T)."""
    costs = np.random.default_rng(1).random((3, 4, 3))
    problem = Problem((costs[0, :, 0], costs[1, 0]), ((0, 1),), (costs[2],))
    temperature, seen = 0.5, Counter()
    evaluator = Additive(problem, (0, 0))
    propose = single(evaluator.unary)

    def counted(choice, draw: random.Random) -> Changes:
        seen[tuple(choice)] += 1
        return propose(choice, draw)

    walked = walk(evaluator, counted, temperature, random.Random(3), proposals=2 * 60_000, patience=1.0)
    states = list(itertools.product(*(range(len(costs)) for costs in problem.node_costs)))
    assert len(states) > 4
    weights = np.array([math.exp(-cost_of(problem, state) / temperature) for state in states])
    measured = np.array([seen[state] for state in states]) / walked.proposals
    assert np.abs(measured - weights / weights.sum()).max() < 0.01


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_the_optimum_of_small_problems_and_keeps_the_limit(seed: int) -> None:
    problem = with_limit(problem_at_random(seed), seed)
    best = exhaustive.solve(problem)
    found = mcmc.solve(problem, seed=1, proposals=20_000, temperature=0.1)
    assert found.cost == cost_of(problem, found.choice) >= best.cost * (1 - 1e-9)
    assert found.lower_bound <= best.cost * (1 + 1e-9)
    if math.isfinite(best.cost) and best.peak <= problem.usage_limit:
        assert found.peak <= problem.usage_limit
        assert found.cost <= best.cost * 1.25


def test_a_start_that_fits_is_never_left_for_one_that_does_not() -> None:
    base = layers(30)
    usages = tuple(Usage(v, 0, 1, np.array([0.0, 1.0, 2.0, 9.0])) for v in range(30))
    problem = dataclasses.replace(base, node_usages=usages, usage_limit=40.0)
    start = (0,) * 30
    found = mcmc.solve(problem, seed=0, proposals=10_000, starts=[start])
    assert found.peak <= 40.0
    assert found.cost <= cost_of(problem, start)


def test_a_start_that_does_not_fit_is_made_to() -> None:
    usages = tuple(Usage(v, 0, 1, np.array([0.0, 1.0, 2.0, 9.0])) for v in range(30))
    problem = dataclasses.replace(layers(30), node_usages=usages, usage_limit=40.0)
    found = mcmc.solve(problem, seed=0, proposals=2_000, starts=[(3,) * 30])
    assert found.peak <= 40.0


def test_blocks_leave_what_single_moves_cannot() -> None:
    problem = layers(40)
    costs = {}
    for part in (0.0, 0.5):
        evaluator = Additive(problem, (0,) * 40)
        propose = mixed(single(evaluator.unary), block(evaluator.unary, evaluator.near), part)
        costs[part] = walk(evaluator, propose, 1e-3, random.Random(2), proposals=20_000).cost
    assert costs[0.0] == cost_of(problem, (0,) * 40) == 40.0
    assert costs[0.5] == pytest.approx(36.0)


def test_the_same_seed_and_work_give_the_same_choice() -> None:
    problem = with_limit(problem_at_random(11), 11)
    first = mcmc.solve(problem, seed=4, proposals=3_000)
    assert first == mcmc.solve(problem, seed=4, proposals=3_000)
    assert {mcmc.solve(layers(30), seed=seed, proposals=200).choice for seed in range(4)} != {first.choice}


def test_it_stops_after_half_of_its_work_without_a_better_choice() -> None:
    problem = layers(3)
    evaluator = Additive(problem, (3, 3, 3))
    walked = walk(evaluator, single(evaluator.unary), 0.0, random.Random(0), proposals=1_000)
    assert walked.choice == (3, 3, 3)
    assert walked.proposals == 501


def test_an_interrupted_walk_gives_the_best_so_far() -> None:
    problem = layers(20)
    evaluator = Additive(problem, (1,) * 20)
    propose, left = single(evaluator.unary), iter(range(500))

    def until_interrupted(choice, draw: random.Random) -> Changes:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return propose(choice, draw)

    walked = walk(evaluator, until_interrupted, 10.0, random.Random(0), proposals=10**6)
    assert walked.cut == "interrupted"
    assert walked.cost == pytest.approx(cost_of(problem, walked.choice))
    assert walked.cost <= cost_of(problem, (1,) * 20)


class Slowest:
    """Another evaluator: the makespan of nodes that run at once, 3 devices; no tables of edges at all."""

    def __init__(self, costs: list[list[float]]) -> None:
        self.costs, self.choice = costs, [0] * len(costs)
        self.cost = self._makespan(self.choice)

    def _makespan(self, choice: list[int]) -> float:
        load = [0.0, 0.0, 0.0]
        for costs, c in zip(self.costs, choice, strict=True):
            load[c] += costs[c]
        return max(load)

    def _after(self, changes: Changes) -> list[int]:
        return [changes.get(v, c) for v, c in enumerate(self.choice)]

    def price(self, changes: Changes) -> float:
        return self._makespan(self._after(changes))

    def allows(self, changes: Changes) -> bool:
        return True

    def move(self, changes: Changes) -> None:
        self.choice[:] = self._after(changes)
        self.cost = self._makespan(self.choice)


def test_any_evaluator_can_be_walked_on() -> None:
    costs = [[1.0 + v % 3] * 3 for v in range(9)]
    evaluator = Slowest(costs)
    propose = single([np.array(row) for row in costs])
    walked = walk(evaluator, propose, 0.1, random.Random(0), proposals=5_000)
    assert walked.cost == 6.0
    assert evaluator._makespan(list(walked.choice)) == 6.0
