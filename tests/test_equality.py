"""What the planner promises, on eight devices: the sharded step computes what the step computes, passes its
state's memory on, compiles once, and starts from parameters that were never whole on one device."""

import contextlib
import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from steps import MESHES, NAMES, Step, Unsharded, compilations, differences, run_unsharded, step_of

import planner
from planner.sharding.named import SCHEMES
from planner.sharding.spec import axes_of
from planner.training import abstract_state

# The MLP is quick under every scheme; of the others, two are run quickly, by the plan that is chosen.
_QUICK = {("mlp", scheme) for scheme in SCHEMES} | {
    (name, "chosen") for name in ("mlp", "gpt_scan", "resnet")
}
# Enough for what these two add to the others: moments, kept whole and split, and grouped heads.
_FEWER = {
    "plain_adamw": ("chosen", "zero1", "fsdp", "tensor_3d"),
    "llama": ("chosen", "fsdp_tensor", "tensor_3d"),
}
CASES = [
    pytest.param(
        (name, scheme), id=f"{name}-{scheme}", marks=() if (name, scheme) in _QUICK else pytest.mark.slow
    )
    for name in NAMES
    for scheme in _FEWER.get(name, ("chosen", *SCHEMES))
]


@dataclasses.dataclass(frozen=True)
class Ran:
    """A sharded step after three calls. rtol: to compare with; program: the compiled step; given: the state
    as it was put, before the first call; later: what was compiled after the first call."""

    unsharded: Unsharded
    rtol: float
    step: planner.ShardedStep
    program: Any
    given: Any
    after: Any
    metrics: Any
    later: tuple[str, ...]


@pytest.fixture(scope="module")
def references() -> dict[str, tuple[Step, Unsharded]]:
    """What each step does on one device, run when it is first needed."""
    return {}


@pytest.fixture(scope="module", params=CASES)
def ran(request: pytest.FixtureRequest, references: dict[str, tuple[Step, Unsharded]]) -> Ran:
    name, scheme = request.param
    step = references[name][0] if name in references else step_of(name)
    with jax.enable_x64(True) if step.double else contextlib.nullcontext():
        if name not in references:
            references[name] = step, run_unsharded(step)
        return run_sharded(*references[name], scheme)


def run_sharded(step: Step, unsharded: Unsharded, scheme: str) -> Ran:
    """The same steps, planned inside a scheme, or freely: 'chosen'."""
    inside = {} if scheme == "chosen" else {"mesh": MESHES[scheme], "schemes": [scheme]}
    first, *rest = unsharded.batches
    args = abstract_state(step.init), first
    sharded = planner.plan_and_shard(step.step, *args, machine="cpu:8", **inside)
    # The free search may well end in a scheme, but a search inside a scheme in nothing else.
    assert scheme in ("chosen", sharded.plan.scheme)
    program = sharded.lower().compile()
    given, batch = sharded.put(unsharded.before, first)
    state, metrics = sharded(given, batch)
    with compilations() as later:
        for batch in rest:
            state, metrics = sharded(state, batch)
    rtol = 1e-10 if step.double else 1e-5
    return Ran(unsharded, rtol, sharded, program, given, state, metrics, tuple(later))


def test_three_steps_equal_the_unsharded_ones(ran: Ran):
    assert not differences(ran.unsharded, ran.after, ran.rtol)
    np.testing.assert_allclose(ran.metrics["loss"], ran.unsharded.metrics["loss"], rtol=ran.rtol)


def test_every_leaf_of_the_state_passes_its_memory_on(ran: Ran):
    given = jax.tree.leaves(ran.given)
    header = ran.program.as_text().splitlines()[0]
    assert len(re.findall(r"(?:may|must)-alias", header)) == len(given)
    held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in given)
    assert ran.program.memory_analysis().alias_size_in_bytes == held
    assert all(leaf.is_deleted() for leaf in given)


def test_no_later_step_compiles_anything(ran: Ran):
    assert ran.later == ()


def test_the_state_leaves_a_step_as_it_came(ran: Ran):
    places = ran.step.in_shardings[0]
    assert ran.step.out_shardings[0] == places
    for leaf, place in zip(jax.tree.leaves(ran.after), jax.tree.leaves(places), strict=True):
        assert leaf.sharding == place
        assert not leaf.weak_type


@pytest.mark.parametrize(
    "name",
    # plain_sgd would make the moments too, which it does not use and the plan does not split.
    [
        name if name == "mlp" else pytest.param(name, marks=pytest.mark.slow)
        for name in ("gpt_scan", "mlp", "plain_adamw", "resnet")
    ],
)
def test_no_device_ever_holds_a_whole_parameter(name: str, monkeypatch: pytest.MonkeyPatch):
    step = step_of(name)
    args = abstract_state(step.init), step.make_batch(np.random.default_rng(0))
    sharded = planner.plan_and_shard(step.step, *args, machine="cpu:8", mesh=MESHES["fsdp"], schemes=["fsdp"])
    programs = []
    jit = jax.jit

    def watched(fn: Any, **settings: Any) -> Any:
        jitted = jit(fn, **settings)
        if "out_shardings" not in settings:  # the model's own
            return jitted

        def call(*arrays: Any) -> Any:
            programs.append(jitted.lower(*arrays).compile().as_text())
            return jitted(*arrays)

        return call

    monkeypatch.setattr(jax, "jit", watched)
    state = sharded.init(step.init, jax.random.key(0))
    (program,) = programs
    split = {
        leaf.path: leaf
        for leaf in sharded.plan.arguments[: len(jax.tree.leaves(state))]
        if axes_of(leaf.spec)
    }
    parts = {}
    for leaf, array in zip(sharded.plan.arguments, jax.tree.leaves(state), strict=False):
        if leaf.path in split:
            (parts[leaf.path],) = {part.data.shape for part in array.addressable_shards}
            assert math.prod(parts[leaf.path]) == math.prod(leaf.shape) // 8
    shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"\b[a-z]+\d+\[(\d[\d,]*)\]", program)}
    assert max(map(math.prod, shapes)) <= max(map(math.prod, parts.values()))
    # A small matrix may be as large as a part of another one; then it must not look like itself.
    whole = {leaf.shape for leaf in split.values() if len(leaf.shape) > 1} - set(parts.values())
    assert whole
    assert not whole & shapes
