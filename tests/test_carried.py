"""Sums that a loop adds up: finished behind it where the backend moves them, as compiled programs show.

The runs were read from programs compiled ahead of time by libtpu 0.0.42 for v5e:4x4: four micro-batches of a
small MLP, and a loop over eight time steps inside them.
"""

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.cost.carried import is_moved
from planner.sharding.strategy import ALL_REDUCE, Strategy

MICRO, TIME, BATCH, WIDTH = 4, 8, 64, 256


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def mlp(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def twice(w, x):
    return mlp([w, w], x)


def rounded(weights, x):
    return mlp([w.astype(jnp.bfloat16) for w in weights], x.astype(jnp.bfloat16)).astype(jnp.float32)


def recurrent(w, xs):
    def body(h, x):
        return jnp.tanh(h @ w + x), None

    return jnp.mean(jax.lax.scan(body, jnp.zeros_like(xs[0]), xs)[0] ** 2)


def stacked(weights, x):
    def body(x, w):
        return jnp.tanh(x @ w), None

    return jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)


def accumulated(loss, scale=1.0):
    """A step that adds up the gradients of micro-batches."""

    def step(params, batch):
        def micro(total, x):
            gradient = jax.grad(loss)(params, x)
            scaled = gradient if scale == 1.0 else jax.tree.map(lambda g: g * scale, gradient)
            return jax.tree.map(jnp.add, total, scaled), None

        gradient, _ = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, params), batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    return step


WEIGHT = f32(WIDTH, WIDTH)
MATRICES = f32(MICRO, BATCH, WIDTH)


@pytest.mark.parametrize(
    ("step", "params", "batch", "runs"),
    [
        (accumulated(mlp), [WEIGHT, WEIGHT], MATRICES, [1.0, 1.0]),
        (accumulated(rounded), [WEIGHT, WEIGHT], MATRICES, [1.0, 1.0]),
        (accumulated(mlp, 0.25), [WEIGHT, WEIGHT], MATRICES, [4.0, 4.0]),
        (accumulated(twice), WEIGHT, MATRICES, [4.0]),  # two sums, joined, which then stay
        (accumulated(recurrent), WEIGHT, f32(MICRO, TIME, BATCH, WIDTH), [4.0]),  # out of the inner loop only
        (accumulated(stacked), f32(3, WIDTH, WIDTH), MATRICES, [12.0]),
    ],
    ids=["micro-batches", "rounded", "scaled", "used twice", "over time", "stacked layers"],
)
def test_how_often_a_tpu_finishes_the_sums_of_a_loop(step, params, batch, runs):
    plan = planner.plan(step, params, batch, machine="tpu_v5e:4x4", mesh={"x": 16}, schemes=["data"])
    assert [c.times for c in plan.collectives if c.kind == "all_reduce"] == runs


def test_a_cpu_finishes_them_in_every_iteration():
    plan = planner.plan(
        accumulated(mlp), [WEIGHT, WEIGHT], MATRICES, machine="cpu:8", mesh={"x": 8}, schemes=["data"]
    )
    assert [c.times for c in plan.collectives if c.kind == "all_reduce"] == [4.0, 4.0]


def test_split_weights_are_gathered_in_every_iteration_and_their_gradients_added_up_whole():
    """Scattered, the sums would be finished four times; the price is that of the plan's collectives."""
    step, params = accumulated(mlp), [WEIGHT, WEIGHT]
    split = planner.plan(step, params, MATRICES, machine="tpu_v5e:4x4", mesh={"x": 16}, schemes=["fsdp"])
    whole = planner.plan(step, params, MATRICES, machine="tpu_v5e:4x4", mesh={"x": 16}, schemes=["data"])
    assert [(c.kind, c.times) for c in split.collectives] == [("all_gather", 4.0)] * 2 + [
        ("all_reduce", 1.0)
    ] * 2
    assert whole.wire_bytes == pytest.approx(2 * 2 * (15 / 16) * WIDTH * WIDTH * 4)
    for plan in (split, whole):
        spent = sum(c.seconds * c.times for c in plan.collectives)
        assert plan.summed_seconds == pytest.approx(plan.compute_seconds + spent)


def test_only_what_is_summed_whole_and_kept_so_is_moved():
    whole, split = ((), ()), (("x",), ())
    assert is_moved(Strategy({"i": ("x",)}, {"x": ALL_REDUCE}), whole, whole)
    assert not is_moved(Strategy({"i": ("x",)}, {"x": ALL_REDUCE}), whole, split)
    assert not is_moved(Strategy({"i": ("x",)}, {"x": 0}), split, split)
