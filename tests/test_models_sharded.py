"""Every example model on eight devices: two steps under the chosen plan equal the unsharded ones.

So do they under plans drawn at random, which shows that the space that is searched holds nothing else.
"""

import functools
import os

import jax
import numpy as np
import pytest
from random_plans import random_plan
from steps import Step, Unsharded, differences, run_unsharded

import models
import planner
from planner.training import abstract_state

_ELSEWHERE = ("gpt", "llama", "mlp", "resnet")  # tests/test_equality.py runs them under every scheme
_QUICK = ("graphnet", "rnntc")
_LONG = ("unet",)  # a CPU's compiler takes minutes for it
# Learning rates at which two steps move the parameters by much more than the tolerance.
_RATES = {"densenet": 0.1, "inception_v3": 0.1, "rnnlm": 0.5, "transformer_nmt": 0.1}
_SMALL = {"batch": 8}


@pytest.mark.parametrize(
    "name",
    [
        name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in models.names()
        if name not in _ELSEWHERE + _LONG
    ],
)
def test_two_steps_equal_the_unsharded_ones(name: str):
    example = models.load(name, "tiny", optimizer="sgd", learning_rate=_RATES.get(name, 0.05), **_SMALL)
    unsharded = run_unsharded(Step(example.init, example.step, example.make_batch), count=2)
    args = abstract_state(example.init), example.batch
    sharded = planner.plan_and_shard(example.step, *args, machine="cpu:8", seconds=3.0)
    assert not sharded.plan.unknown
    state, metrics = unsharded.before, None
    for batch in unsharded.batches:
        state, metrics = sharded(state, batch)
    assert not differences(unsharded, state, 1e-5)
    np.testing.assert_allclose(metrics["loss"], unsharded.metrics["loss"], rtol=1e-5)


@pytest.mark.parametrize("name", _LONG)
def test_what_takes_long_to_compile_has_a_plan_that_splits_its_batch(name: str):
    example = models.load(name, "tiny", **_SMALL)
    args = abstract_state(example.init), example.batch
    plan = planner.plan(example.step, *args, machine="cpu:8", seconds=3.0)
    assert not plan.unknown
    assert all(any(leaf.spec) for leaf in plan.arguments if leaf.path.startswith("batch") and leaf.shape)


# On how many axes a random plan is drawn, and with which seed. MESHWRIGHT_RANDOM_PLANS=all runs every model
# under all three, which takes long: nearly all of it XLA's compiler.
_DRAWN = ({"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2})
_SMALLER = {"gpt": {"layers": 1}, "llama": {"layers": 1}, "moe": {"layers": 1}, "vit": {"layers": 1}}
_ALWAYS = (
    ("alexnet", 2), ("gpt", 1), ("mlp", 2), ("moe", 2), ("resnet", 2), ("rnnlm", 2), ("rnntc", 0), ("vit", 1),
)  # fmt: skip
# Not understood: under this plan the strided 3x3 kernel of the second block, which two steps hardly move, by
# 2e-7, is off by as much. A strided filter gradient alone is right under 150 strategies drawn from its space.
_WRONG = (("resnet", 2),)
_EVERY = os.environ.get("MESHWRIGHT_RANDOM_PLANS") == "all"
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@functools.cache
def unsharded_of(name: str) -> tuple[Step, Unsharded]:
    """A small config of a model, and what it does on one device."""
    settings = {
        "optimizer": "sgd",
        "learning_rate": _RATES.get(name, 0.05),
        **_SMALL,
        **_SMALLER.get(name, {}),
    }
    example = models.load(name, "tiny", **settings)
    step = Step(example.init, example.step, example.make_batch)
    return step, run_unsharded(step, count=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(*drawn, marks=pytest.mark.xfail(strict=True)) if drawn in _WRONG else drawn
        for drawn in ((name, seed) for name in models.names() for seed in range(3))
        if _EVERY or drawn in _ALWAYS
    ],
)
def test_two_steps_under_a_random_plan_equal_the_unsharded_ones(name: str, seed: int):
    step, unsharded = unsharded_of(name)
    args = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype),
        (abstract_state(step.init), unsharded.batches[0]),
    )
    plan = random_plan(step.step, args, "cpu:8", _DRAWN[seed], seed)
    sharded = planner.plan_and_shard(step.step, *args, plan=plan)
    compiled = sharded.lower().compile(compiler_options=_QUICKLY)
    state = unsharded.before
    for batch in unsharded.batches:
        with jax.set_mesh(sharded.mesh):
            state, _ = compiled(*jax.tree.leaves(sharded.put(state, batch)))
    assert not differences(unsharded, state, 1e-5)
