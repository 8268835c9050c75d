"""Steps of other people: optimizers and primitives that no example model has, planned, sharded and run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from steps import Step, differences, run_unsharded

import planner
from planner.training import abstract_state


def batch_of(rng: np.random.Generator):
    return {"x": rng.standard_normal((8, 8, 16)), "y": rng.standard_normal((8, 16))}


def parameters(key):
    up, down = jax.random.split(key)
    return {"up": jax.random.normal(up, (16, 256)) / 4, "down": jax.random.normal(down, (256, 16)) / 16}


def plain_loss(params, batch):
    hidden = jnp.tanh(batch["x"].mean(1) @ params["up"])
    return jnp.square(hidden @ params["down"] - batch["y"]).mean()


def linear_algebra_loss(params, batch):
    """Solves, factors and transforms of a batch of matrices."""
    rows = batch["x"] @ params["up"][:, :8]
    squares = rows @ rows.swapaxes(1, 2) + 4 * jnp.eye(8)
    solved = jnp.linalg.solve(squares, batch["x"] @ params["down"][:16])
    largest = jnp.linalg.eigvalsh(squares)[:, -1]
    waves = jnp.abs(jnp.fft.rfft(rows)).sum((1, 2))
    return jnp.square(solved).mean() + jnp.log(largest).mean() + 1e-3 * waves.mean()


def ordering_loss(params, batch):
    """Sorts, running sums and the largest few."""
    hidden = jnp.tanh(batch["x"].mean(1) @ params["up"])
    best, places = lax.top_k(hidden, 4)
    running = jnp.cumsum(jnp.sort(hidden, axis=1), axis=1)
    near = (places < 128).mean()
    return plain_loss(params, batch) + best.mean() + running.mean() + lax.stop_gradient(near)


def callback_loss(params, batch):
    """Weights that Python makes."""
    like = jax.ShapeDtypeStruct(batch["y"].shape, batch["y"].dtype)
    weights = jax.pure_callback(lambda y: np.abs(np.asarray(y)), like, batch["y"])
    return plain_loss(params, {"x": batch["x"], "y": lax.stop_gradient(weights)})


CASES = {
    "adafactor": (plain_loss, optax.adafactor(0.1, min_dim_size_to_factor=16)),
    "multi_steps": (plain_loss, optax.MultiSteps(optax.adam(0.1), 2)),
    "muon": (plain_loss, optax.contrib.muon(0.1)),
    "linear algebra": (linear_algebra_loss, optax.sgd(0.1)),
    "ordering": (ordering_loss, optax.sgd(0.1)),
}


def step_with(loss, optimizer) -> Step:
    def init(key):
        params = parameters(key)
        return params, optimizer.init(params)

    def step(state, batch):
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {"loss": value}

    return Step(init, step, batch_of, double=True)


@pytest.mark.parametrize(
    "case", [case if case == "ordering" else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_two_steps_equal_the_unsharded_ones(case: str):
    step = step_with(*CASES[case])
    with jax.enable_x64(True):
        unsharded = run_unsharded(step, count=2)
        args = abstract_state(step.init), unsharded.batches[0]
        sharded = planner.plan_and_shard(step.step, *args, machine="cpu:8", seconds=3.0)
        assert not sharded.plan.unknown
        state, metrics = unsharded.before, None
        for batch in unsharded.batches:
            state, metrics = sharded(state, batch)
        assert not differences(unsharded, state, 1e-8)
        np.testing.assert_allclose(metrics["loss"], unsharded.metrics["loss"], rtol=1e-8)


def test_what_python_computes_stays_whole_and_is_named():
    step = step_with(callback_loss, optax.sgd(0.1))
    batch = jax.tree.map(lambda x: x.astype(np.float32), batch_of(np.random.default_rng(0)))
    plan = planner.plan(step.step, abstract_state(step.init), batch, machine="cpu:8", seconds=3.0)
    assert plan.unknown == {"pure_callback": 1}
