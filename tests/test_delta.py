"""Delta simulation equals the full one, at every move of random walks, whatever the overlap."""

import random

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshes.collectives import KINDS
from planner.simulate.delta import Delta
from planner.simulate.policy import Policy
from planner.simulate.timeline import Simulator
from tests import small_steps
from tests.pipeline import Stages, network_of, stages_of

POLICIES = {
    "nothing": Policy(),
    "gathers": Policy(frozenset(("all_gather", "permute"))),
    "everything": Policy(frozenset(KINDS)),
    "contended": Policy(frozenset(KINDS), ahead=2, slowdown={"nvlink": 0.15}),
}


def deep_step(weights, x_BD):
    """Layers enough for several marks, every second one in a loop over weights of its own."""

    def loss(weights):
        y_BD = x_BD
        for w_DD, stacked_LDD in weights:
            y_BD = jnp.tanh(y_BD @ w_DD) + y_BD
            y_BD, _ = jax.lax.scan(lambda y_BD, w_DD: (jnp.sin(y_BD @ w_DD), None), y_BD, stacked_LDD)
        return jnp.mean(y_BD**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def plain_step(weights, x_BD):
    def loss(weights):
        y_BD = x_BD
        for w_DD in weights:
            y_BD = jnp.tanh(y_BD @ w_DD) + y_BD
        return jnp.mean(y_BD**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


@pytest.fixture(scope="module", params=["plain", "loops"])
def stages(request) -> Stages:
    network = network_of("gpu_h100_sxm_80gb:1x8", x=2, y=4)
    x = small_steps.f32(64, 64)
    if request.param == "plain":
        return stages_of(plain_step, [small_steps.f32(64, 64)] * 40, x, network=network)
    weights = [(small_steps.f32(64, 64), small_steps.f32(3, 64, 64))] * 4
    return stages_of(deep_step, weights, x, network=network)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_move_costs_what_the_full_simulation_says(stages, policy, seed):
    draw = random.Random(seed)
    costs = stages.tables.problem.node_costs
    simulator = Simulator(stages.graph, stages.coarse, stages.tables, POLICIES[policy])
    delta = Delta(simulator, [draw.randrange(len(c)) for c in costs])
    for _ in range(12):
        nodes = draw.sample(range(len(costs)), draw.choice((1, 1, 2, 5)))
        changes = {v: draw.randrange(len(costs[v])) for v in nodes}
        after = [changes.get(v, c) for v, c in enumerate(delta.choice)]
        full = simulator.run(after).run
        assert delta.price(changes) == full.ticks
        if draw.random() < 0.3:
            delta.move(changes)
            assert (delta.ticks, delta.choice) == (full.ticks, after)
