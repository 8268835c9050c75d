"""Refinement: from the optimum of the sums to a choice that is better, and never worse, by its timeline."""

import math

import pytest

from planner.candidates import Candidate, timed
from planner.cost.problem import Choice, cost_of, peak_of
from planner.refine import ByTimeline, refined
from planner.simulate.delta import Delta
from planner.simulate.durations import PICO
from planner.simulate.timeline import Simulator, Simulators
from planner.solvers import auto
from tests import small_steps
from tests.pipeline import Stages, network_of, stages_of

LARGE = small_steps.adam_args(batch=4096, inputs=2048, hidden=8192, outputs=2048)


def stages_on(machine: str, limit: float = math.inf) -> Stages:
    return stages_of(small_steps.adam_step, *LARGE, network=network_of(machine, x=8), limit=limit)


def optimum(stages: Stages) -> Candidate:
    choice = auto.solve(stages.tables.problem, seconds=30)
    candidate = Candidate("", stages.network.mesh, stages.tables, choice)
    return timed(Simulators(stages.graph, stages.coarse), candidate)


@pytest.mark.parametrize("limit", [math.inf, 1.5e8])
def test_the_result_is_faster_and_keeps_the_limit(limit):
    stages = stages_on("gpu_h100_sxm_80gb:1x8", limit)
    best = optimum(stages)
    found = refined(Simulators(stages.graph, stages.coarse), best, 30.0, 0)
    assert found.seconds <= best.seconds
    assert found.choice.peak <= limit
    assert found.choice.cost == pytest.approx(cost_of(stages.tables.problem, found.choice.choice))
    assert found.choice.cost >= found.choice.lower_bound * (1 - 1e-9)
    again = refined(Simulators(stages.graph, stages.coarse), best, 30.0, 0)
    assert again.choice.choice == found.choice.choice


def test_it_leaves_a_poor_start_behind():
    stages = stages_on("gpu_h100_sxm_80gb:1x8")
    whole = tuple(0 for _ in stages.tables.nodes)
    problem = stages.tables.problem
    choice = Choice(whole, cost_of(problem, whole), 0.0, peak_of(problem, whole), "splits nothing")
    simulators = Simulators(stages.graph, stages.coarse)
    poor = timed(simulators, Candidate("", stages.network.mesh, stages.tables, choice))
    found = refined(simulators, poor, 30.0, 0)
    assert found.seconds <= optimum(stages).seconds < 0.5 * poor.seconds


def test_where_nothing_overlaps_the_optimum_stays():
    stages = stages_on("cpu:8")
    best = optimum(stages)
    assert refined(Simulators(stages.graph, stages.coarse), best, 30.0, 0) is best


def test_the_evaluator_follows_its_moves():
    stages = stages_on("gpu_h100_sxm_80gb:1x8", 1.5e8)
    simulator = Simulator(stages.graph, stages.coarse, stages.tables)
    evaluator = ByTimeline(Delta(simulator, optimum(stages).choice.choice), stages.tables.problem)
    for v, costs in enumerate(stages.tables.problem.node_costs):
        changes = {v: len(costs) - 1}
        price = evaluator.price(changes)
        if price < evaluator.added.wall and evaluator.allows(changes):
            evaluator.move(changes)
            assert evaluator.cost == price == simulator.run(evaluator.choice).run.ticks / PICO
