"""The timeline: sums where nothing overlaps, never longer where something does, and adds up."""

import dataclasses
import random

import jax
import jax.numpy as jnp
import pytest

from meshes.collectives import KINDS
from planner.cost.problem import FORBIDDEN, cost_of
from planner.planning import Decided
from planner.simulate.policy import Policy
from planner.simulate.timeline import COMPUTE, Simulator, simulate
from tests import small_steps
from tests.pipeline import Stages, network_of, stages_of

EVERYTHING = Policy(frozenset(KINDS))


def scanned_step(weights_LDD, x_BD):
    def loss(weights_LDD):
        y_BD, _ = jax.lax.scan(lambda y_BD, w_DD: (jnp.tanh(y_BD @ w_DD), None), x_BD, weights_LDD)
        return jnp.mean(y_BD**2)

    return weights_LDD - 0.1 * jax.grad(loss)(weights_LDD)


@pytest.fixture(scope="module", params=["plain", "scanned"])
def stages(request) -> Stages:
    network = network_of("gpu_h100_sxm_80gb:1x8", x=2, y=4)
    if request.param == "plain":
        return stages_of(small_steps.adam_step, *small_steps.adam_args(), network=network)
    return stages_of(scanned_step, small_steps.f32(6, 64, 64), small_steps.f32(64, 64), network=network)


def random_choices(stages: Stages, count: int) -> list[list[int]]:
    draw = random.Random(0)
    found = []
    while len(found) < count:
        choice = [draw.randrange(len(costs)) for costs in stages.tables.problem.node_costs]
        if cost_of(stages.tables.problem, choice) < FORBIDDEN:
            found.append(choice)
    return found


def test_without_overlap_a_step_takes_the_sum(stages):
    simulator = Simulator(stages.graph, stages.coarse, stages.tables, Policy())
    for choice in random_choices(stages, 20):
        assert simulator.seconds(choice) == pytest.approx(cost_of(stages.tables.problem, choice), abs=1e-9)


def test_overlap_saves_time_but_neither_work_nor_bytes(stages):
    alone = Simulator(stages.graph, stages.coarse, stages.tables, Policy())
    beside = Simulator(stages.graph, stages.coarse, stages.tables, EVERYTHING)
    saved = 0
    for choice in random_choices(stages, 20):
        slow, fast = alone.run(choice).run, beside.run(choice).run
        assert fast.work == slow.work <= fast.ticks <= slow.ticks
        saved += slow.ticks - fast.ticks
    assert saved > 0


def test_a_timeline_adds_up(stages):
    for choice in random_choices(stages, 5):
        for policy in (Policy(), EVERYTHING, dataclasses.replace(EVERYTHING, slowdown={"nvlink": 0.15})):
            found = simulate(Decided(stages.graph, stages.coarse, stages.tables, choice), policy)
            assert found.compute_seconds + found.exposed_seconds == pytest.approx(found.step_seconds)
            assert sum(seconds for _, seconds in found.exposed) == pytest.approx(found.exposed_seconds)
            assert found.busy[COMPUTE] >= found.compute_seconds * (1 - 1e-9)
            assert max(span.start + span.seconds for span in found.spans) <= found.step_seconds * (1 + 1e-9)


def test_no_stream_does_two_things_at_once(stages):
    for choice in random_choices(stages, 5):
        found = simulate(Decided(stages.graph, stages.coarse, stages.tables, choice), EVERYTHING)
        ends: dict[str, float] = {}
        for span in found.spans:
            for stream in span.streams:
                assert span.start >= ends.get(stream, 0.0) - 1e-12
                ends[stream] = span.start + span.seconds
