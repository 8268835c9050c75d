"""Every example model on eight devices: two steps under the chosen plan equal the unsharded ones."""

import numpy as np
import pytest
from steps import Step, differences, run_unsharded

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
