"""Deep steps within memory, the same every time, and cut short at any moment."""

import dataclasses
import pickle

import numpy as np
import pytest

from planner.cost.problem import Problem, Usage, cost_of, peak_of
from planner.solvers import auto, elimination, ilp, interning
from planner.solvers.elimination import TooLarge, eliminate
from planner.solvers.interning import Interner
from planner.solvers.minplus import OutOfTime
from planner.solvers.network import network_of
from planner.solvers.orders import RULES, Order, best_order, greedy_order
from planner.solvers.pruning import minimise


def deep(layers: int, size: int = 4, limit: float = np.inf) -> Problem:
    """Identical layers, each a forward node, a backward node that uses what it kept, and a weight that lives
    all along. Strategies that cost less hold more: only memory makes a choice hard."""
    draw = np.random.default_rng(7)
    costs = [np.sort(draw.random(size)) for _ in range(3)]
    tables = [0.2 * draw.random((size, size)) for _ in range(5)]
    held = [10.0 * np.sort(draw.random(size))[::-1] for _ in range(2)]
    edges: list[tuple[int, int]] = []
    joined: list[np.ndarray] = []
    usages: list[Usage] = []
    horizon = 2 * layers
    for layer in range(layers):
        forward, backward, weight = range(3 * layer, 3 * layer + 3)
        edges += [(forward, backward), (weight, forward), (weight, backward)]
        joined += tables[:3]
        if layer:
            edges += [(forward - 3, forward), (backward - 3, backward)]
            joined += tables[3:]
        usages.append(Usage(forward, layer, horizon - layer, held[0]))
        usages.append(Usage(weight, 0, horizon, held[1]))
    return Problem(
        tuple(costs * layers), tuple(edges), tuple(joined), tuple(usages), (), limit, horizon=horizon
    )


def between(problem: Problem, part: float) -> Problem:
    """With a limit that is `part` of the way from the least peak possible to that of the free optimum."""
    least = sum(float(usage.bytes.min()) for usage in problem.node_usages)
    most = auto.solve(problem).peak
    return dataclasses.replace(problem, usage_limit=least + part * (most - least))


def order_of(problem: Problem, rule: str, intern: Interner) -> Order:
    order = greedy_order(network_of(problem, intern), intern, rule)
    assert order is not None
    return order


@pytest.mark.parametrize("part", [0.02, 0.3, 0.7, 0.95])
def test_deep_steps_are_solved_within_memory(part: float) -> None:
    problem = between(deep(7), part)
    found = auto.solve(problem)
    best = ilp.solve(problem)
    assert best.stopped == "exact"
    assert found.peak == peak_of(problem, found.choice) <= problem.usage_limit
    assert found.lower_bound <= best.cost * (1 + 1e-9)
    assert best.cost * (1 - 1e-9) <= found.cost <= best.cost * 1.01


def test_a_small_gap_is_left_when_time_is_short() -> None:
    problem = between(deep(150), 0.5)
    found = auto.solve(problem, seconds=2.0)
    assert found.peak <= problem.usage_limit
    assert found.cost - found.lower_bound <= 2e-3 * found.cost


def test_the_same_problem_gives_the_same_answer() -> None:
    problem = between(deep(12, 5), 0.4)
    again = pickle.loads(pickle.dumps(problem))
    assert auto.solve(problem, seed=1) == auto.solve(again, seed=2)


@pytest.mark.parametrize("rule", RULES)
def test_what_an_order_computes_is_known_beforehand(rule: str) -> None:
    intern = Interner()
    problem = deep(12)
    order = order_of(problem, rule, intern)
    network = network_of(problem, intern)
    found = eliminate(network, order, intern)
    assert found.entries <= order.fresh <= order.entries
    with pytest.raises(TooLarge):
        eliminate(network, order, Interner(), most=found.entries / 2)


@pytest.mark.parametrize("rule", RULES)
def test_equal_parts_count_once(rule: str) -> None:
    one = deep(1)
    edges = tuple((u + 3 * copy, w + 3 * copy) for copy in range(20) for u, w in one.edges)
    many = Problem(one.node_costs * 20, edges, one.edge_costs * 20)
    intern = Interner()
    single, order = order_of(one, rule, intern), order_of(many, rule, intern)
    assert order.entries == 20 * single.entries
    assert order.fresh == single.fresh


def test_the_cheapest_order_is_taken_unless_one_is_cheap_enough() -> None:
    intern = Interner()
    network = network_of(deep(12), intern)
    first, best = best_order(network, intern, enough=np.inf), best_order(network, intern)
    assert first is not None
    assert best is not None
    assert first == greedy_order(network, intern, "degree")
    assert best.fresh <= first.fresh
    assert best_order(network, intern, most=best.fresh / 2) is None


@pytest.mark.parametrize("rule", RULES)
def test_no_order_is_looked_for_when_the_time_is_up(rule: str) -> None:
    intern = Interner()
    network = network_of(deep(12), intern)
    with pytest.raises(OutOfTime):
        best_order(network, intern, [rule], deadline=0.0)
    assert elimination.solve(deep(12), seconds=0.0).stopped == "not done: the time was up"


def test_an_order_serves_at_other_prices() -> None:
    problem = deep(12)
    intern = Interner()
    order = minimise(network_of(problem, intern), intern).order
    assert order is not None
    assert sorted(order.nodes) == list(range(36))
    prices = np.zeros(problem.horizon)
    prices[[3, 12]] = 0.05, 0.02
    priced = network_of(problem, intern, prices)
    again = minimise(priced, intern, order=order)
    assert again.order is order
    assert again.value == again.bound == minimise(priced, Interner()).value


@pytest.mark.parametrize("within", [np.inf, 0.3])
def test_it_may_be_interrupted_anywhere(monkeypatch: pytest.MonkeyPatch, within: float) -> None:
    problem = deep(5) if np.isinf(within) else between(deep(5), within)
    start = tuple(3 if v % 3 != 1 else 0 for v in range(15))  # holds least
    best = auto.solve(problem)
    interned, ends = interning.Interner.__call__, []
    for moment in (*range(1, 1500, 140), 10**9):
        left = [moment]

        def interrupt(self: Interner, table: np.ndarray, left: list[int] = left) -> np.ndarray:
            assert left[0] > 0, "it went on after the interruption"
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return interned(self, table)

        monkeypatch.setattr(interning.Interner, "__call__", interrupt)
        found = auto.solve(problem, starts=[start])
        assert found.peak <= problem.usage_limit
        assert found.lower_bound <= best.cost * (1 + 1e-9)
        assert found.cost == cost_of(problem, found.choice) <= cost_of(problem, start)
        assert found.stopped.endswith(", interrupted") == (left[0] <= 0)
        ends.append(left[0] <= 0)
    assert ends[0]
    assert not ends[-1]
    monkeypatch.undo()
    assert auto.solve(problem, starts=[start]).cost == best.cost


def test_an_interrupted_elimination_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(elimination, "best_order", interrupt)
    found = elimination.solve(deep(3))
    assert found.stopped == "not done: interrupted"
    assert found.lower_bound <= auto.solve(deep(3)).cost
