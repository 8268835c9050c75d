"""The step that comes out: called like the user's, placed as planned, donated, compiled once."""

import dataclasses
import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_plans import close, hand_plan
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from planner.apply import ShardedStep, apply, whole_weights
from planner.errors import InputError, PlanFileError, TraceError
from planner.jax_compat import leaf_paths, state_partners, trace_step
from planner.sharding.spec import Spec

SPLIT: Spec = (("x",), ("y",))
ROWS: Spec = (("x",), ())


def train_step(state: Any, batch: Any, mode: str, rate: Any = 0.5) -> Any:
    """A step with every kind of leaf: a matrix, a counter, a flag, a typed key; and a static argument."""
    key, now = jax.random.split(state["key"])
    step_size = rate * batch.mean() if mode == "mean" else rate * batch.max()
    new = {
        "w": state["w"] - step_size * jax.random.normal(now, state["w"].shape),
        "count": state["count"] + 1,
        "odd": ~state["odd"],
        "key": key,
    }
    return new, {"size": step_size}


def new_state(key: Any, config: dict[str, int]) -> Any:
    w = jax.random.normal(key, (config["rows"], 4))
    return {"w": w, "count": 0, "odd": False, "key": jax.random.fold_in(key, 1)}


CONFIG = {"rows": 8}
BATCH = np.arange(32, dtype=np.float32).reshape(8, 4)


def arguments() -> tuple[Any, Any, str, float]:
    return new_state(jax.random.key(0), CONFIG), BATCH, "mean", 0.5


@pytest.fixture
def step(grid: Mesh) -> ShardedStep:
    traced = trace_step(train_step, arguments(), static_argnums=2)
    plan = hand_plan(traced, grid, {}, {"state.w": SPLIT, "batch": ROWS}, {"result.0.w": SPLIT})
    return apply(plan, traced, grid)


def compilations(caplog: pytest.LogCaptureFixture, name: str) -> int:
    return len(re.findall(rf"Finished XLA compilation of jit\({name}\)", caplog.text))


def values(tree: Any) -> Any:
    """Arrays that numpy can compare: keys as their data."""

    def plain(leaf: Any) -> Any:
        typed = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if typed else np.asarray(leaf)

    return jax.tree.map(plain, tree)


@pytest.mark.parametrize("placed", [True, False], ids=["put", "as_it_comes"])
def test_the_first_call_compiles_and_no_later_one(
    step: ShardedStep, placed: bool, caplog: pytest.LogCaptureFixture
):
    state, batch, mode, rate = arguments()
    if placed:
        state, batch, mode, rate = step.put(state, batch, mode, rate)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for _ in range(3):
            state, out = step(state, batch, mode, rate)
        state, _ = step(state, jnp.asarray(BATCH), mode, rate=jnp.float32(0.5))
        step({**state, "count": 7, "odd": np.bool_(True)}, batch, mode, np.float64(0.5))
    assert compilations(caplog, "train_step") == 1
    assert out["size"].dtype == jnp.float32


def test_it_computes_what_the_step_computes(step: ShardedStep):
    state, batch, mode, rate = arguments()
    wanted = state
    reference = jax.jit(train_step, static_argnums=2)
    for _ in range(3):
        state, out = step(state, batch, mode, rate)
        wanted, wanted_out = reference(wanted, batch, mode, rate)
    close(values((state, out)), values((wanted, wanted_out)))
    assert state["w"].sharding == NamedSharding(step.mesh, PartitionSpec("x", "y"))


def test_every_donated_leaf_is_aliased_and_the_users_own_arrays_live_on(step: ShardedStep):
    header = step.lower().compile().as_text().splitlines()[0]
    assert len(re.findall(r"may-alias|must-alias", header)) == 4
    mine = {**new_state(jax.random.key(0), CONFIG), "count": jnp.int32(3), "odd": jnp.asarray(True)}
    numbers = {name: np.array(mine[name]) for name in ("w", "count", "odd")}
    before = jax.tree.map(np.copy, numbers)
    state = step.put(mine)
    step(state, BATCH, "mean", 0.5)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(mine))
    step({**numbers, "key": mine["key"]}, BATCH, "mean", 0.5)
    jax.tree.map(np.testing.assert_array_equal, numbers, before)
    assert not mine["key"].is_deleted()


@pytest.mark.parametrize(
    ("stack", "specs", "laid"),
    [((3, 8, 16), {}, set()), ((3, 16, 8), {}, {(8, 16)}), ((3, 16, 8), {"w": ("x", ())}, set())],
)
def test_gradients_are_laid_out_where_the_weight_is_whole_and_no_part_of_a_stack(
    grid: Mesh, stack: tuple[int, ...], specs: dict[str, Any], laid: set[tuple[int, ...]]
):
    def halved(state):
        return jax.tree.map(lambda leaf: leaf / 2, state)

    state = {"w": jax.ShapeDtypeStruct((8, 16), "float32"), "stack": jax.ShapeDtypeStruct(stack, "float32")}
    traced = trace_step(halved, (state,))
    given = {f"state.{name}": spec for name, spec in specs.items()}
    plan = dataclasses.replace(hand_plan(traced, grid, arguments=given), machine="tpu_v5e:2x2")
    assert whole_weights(plan, traced) == laid
    assert whole_weights(dataclasses.replace(plan, machine="cpu:4"), traced) == set()


def test_put_returns_what_is_in_place_as_it_is(step: ShardedStep):
    state = step.init(new_state, jax.random.key(0), CONFIG)
    assert step.put(state)["w"] is state["w"]
    assert step.put(BATCH, first=1).sharding == NamedSharding(step.mesh, PartitionSpec("x", None))
    with pytest.raises(InputError) as caught:
        step.put(state, BATCH, first=3)
    assert str(caught.value) == (
        "put is given 2 arguments from number 3 on, but the step takes 4. "
        "Pass at most those it was planned with."
    )


def test_init_is_born_sharded(step: ShardedStep, caplog: pytest.LogCaptureFixture):
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        state = step.init(new_state, jax.random.key(0), CONFIG)
    assert compilations(caplog, "_normal") == 0  # nothing ran outside the one sharded program
    assert {shard.data.shape for shard in state["w"].addressable_shards} == {(2, 2)}
    close(values(state), values(new_state(jax.random.key(0), CONFIG)))
    assert not any(leaf.aval.weak_type for leaf in jax.tree.leaves(state) if hasattr(leaf.aval, "weak_type"))
    both = step.init(lambda key: (new_state(key, CONFIG), jnp.ones((8, 4))), jax.random.key(0))
    assert both[1].sharding == NamedSharding(step.mesh, PartitionSpec("x", None))


def test_abstract_carries_the_shardings_and_lowers(step: ShardedStep):
    state, batch, _ = step.abstract()
    assert state["w"].sharding == step.in_shardings[0]["w"] == step.out_shardings[0]["w"]
    assert (batch.shape, str(batch.dtype)) == ((8, 4), "float32")
    assert "train_step" in step.lower(*arguments()).as_text()


def test_it_runs_inside_another_jit_and_in_eval_shape(step: ShardedStep):
    state, batch, mode, rate = arguments()
    shapes = jax.eval_shape(lambda s, b: step(s, b, mode, rate), state, batch)
    assert shapes[0]["w"].shape == (8, 4)
    twice = jax.jit(lambda s, b: step(step(s, b, mode, rate)[0], b, mode, rate))(state, batch)
    reference = jax.jit(train_step, static_argnums=2)
    close(values(twice), values(reference(reference(state, batch, mode, rate)[0], batch, mode, rate)))


def test_an_explicit_mesh_around_and_explicit_arrays(grid: Mesh):
    explicit = jax.make_mesh((4, 2), ("x", "y"))
    place = NamedSharding(explicit, PartitionSpec("x", "y"))

    def fn(x: Any, y: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ y, PartitionSpec("x", None)) + jax.jit(jnp.tanh)(x)

    x, y = (jax.device_put(jax.random.normal(jax.random.key(n), (8, 8)), place) for n in (0, 1))
    with jax.set_mesh(explicit):
        traced = trace_step(fn, (x, y), donate_argnums=())
        step = apply(
            hand_plan(traced, explicit, {}, {"x": SPLIT, "y": SPLIT}, {"result": SPLIT}), traced, explicit
        )
        got = step(x, y)
    assert dict(step.mesh.shape) == {"x": 4, "y": 2}
    close(got, np.asarray(x) @ np.asarray(y) + np.tanh(np.asarray(x)))


def test_a_jitted_step_keeps_its_own_static_and_donated_arguments():
    jitted = jax.jit(train_step, static_argnums=2, donate_argnums=1)
    traced = trace_step(jitted, arguments())
    assert traced.statics == ((2, "mean"),)
    assert traced.donated == (4,)
    assert trace_step(jitted, arguments(), donate_argnums=0).donated == (0, 1, 2, 3)
    unclear = jax.jit(lambda x, n, m: x * m, static_argnums=1)
    with pytest.raises(InputError) as caught:
        trace_step(unclear, (jnp.ones(3), 2, 3))
    assert str(caught.value) == (
        "It cannot be told which 1 of the 3 arguments of <lambda> are static. Name them with static_argnums."
    )
    assert trace_step(unclear, (jnp.ones(3), 2, 3), static_argnums=1).statics == ((1, 2),)


def test_leaves_are_named_and_state_finds_its_result():
    traced = trace_step(train_step, arguments(), static_argnums=2)
    paths, results = leaf_paths(traced)
    assert paths == ("state.count", "state.key", "state.odd", "state.w", "batch", "rate")
    assert results == ("result.0.count", "result.0.key", "result.0.odd", "result.0.w", "result.1.size")
    assert state_partners(traced) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert traced.donated == (0, 1, 2, 3)
    pair = trace_step(
        lambda w, m, *rest: (rest[0].sum(), (w, m + 1)), (jnp.ones(3), jnp.ones(3), jnp.ones(5))
    )
    assert leaf_paths(pair)[0] == ("w", "m", "rest.0")
    assert state_partners(pair) == {0: 1, 1: 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s, b: (s, b[:6], "mean", 0.5),
            "The step does not take this batch: batch is float32[6, 4] where float32[8, 4] was planned. "
            "Pass what it was planned with, or plan again for this batch.",
        ),
        (
            lambda s, b: ({**s, "w": s["w"][0]}, b, "mean", 0.5),
            "The step does not take this state: state.w is float32[4] where float32[8, 4] was planned. "
            "Pass what it was planned with, or plan again for this state.",
        ),
        (
            lambda s, b: ({**s, "w": [s["w"]]}, b, "mean", 0.5),
            "The step does not take this state: state.w is missing. "
            "Pass what it was planned with, or plan again for this state.",
        ),
        (
            lambda s, b: ({**s, "b": 1.0}, b, "mean", 0.5),
            "The step does not take this state: state.b was not planned. "
            "Pass what it was planned with, or plan again for this state.",
        ),
        (
            lambda s, b: (s, "text", "mean", 0.5),
            "The step does not take this batch: batch is a str where float32[8, 4] was planned. "
            "Pass what it was planned with, or plan again for this batch.",
        ),
        (
            lambda s, b: (s, b, "max", 0.5),
            "The step was planned with mode = 'mean' as part of the program, but is given 'max'. "
            "Plan again for this value.",
        ),
        (
            lambda s, b: (s, b),
            "The step takes 4 arguments (state, batch, mode, rate), but is given 2. "
            "Pass what it was planned with.",
        ),
    ],
)
def test_wrong_arguments_are_named(step: ShardedStep, change: Any, message: str):
    state, batch, *_ = arguments()
    with pytest.raises(InputError) as caught:
        step(*change(state, batch))
    assert str(caught.value) == message


def test_init_that_makes_something_else_is_refused(step: ShardedStep):
    with pytest.raises(InputError) as caught:
        step.init(lambda key: {**new_state(key, CONFIG), "w": jnp.ones(3)}, jax.random.key(0))
    assert str(caught.value) == (
        "The function given to init does not return the step's state: state.w is float32[3] "
        "where float32[8, 4] was planned. Return it whole, as the step takes it."
    )


def test_a_plan_for_another_step_or_mesh_is_refused(step: ShardedStep, line: Mesh, grid: Mesh):
    with pytest.raises(PlanFileError) as caught:
        apply(step.plan, step.traced, line)
    assert str(caught.value) == (
        "The plan was made for the mesh {'x': 4, 'y': 2}, not for {'x': 8}. "
        "Give the plan's own mesh, or plan again for this one."
    )
    state, batch, mode, rate = arguments()
    with pytest.raises(PlanFileError) as caught:
        apply(step.plan, trace_step(train_step, (state, batch[:4], mode, rate), 2), grid)
    assert str(caught.value) == (
        "The plan has the argument batch of float32[8, 4] where the step has batch of float32[4, 4]. "
        "Plan again for this step."
    )
    with pytest.raises(PlanFileError) as caught:
        apply(step.plan, trace_step(lambda x: x, (batch,)), grid)
    assert str(caught.value) == (
        "The plan has 6 argument leaves, but the step has 1. Plan again for this step."
    )


def test_a_step_that_does_not_trace_is_refused():
    def broken(x: Any) -> Any:
        return x @ jnp.ones((5, 5))

    with pytest.raises(TraceError) as caught:
        trace_step(broken, (jnp.ones((4, 4)),))
    assert str(caught.value).startswith("The step broken cannot be traced: TypeError: dot_general requires")
    assert str(caught.value).endswith(
        ". Make jax.jit(broken) trace with these arguments first; "
        "Python values that steer the program belong in static_argnums."
    )
    with pytest.raises(InputError) as caught:
        trace_step(broken, (jnp.ones((4, 4)),), static_argnums=3)
    assert str(caught.value) == (
        "static_argnums names argument 3, but the step is given 1 arguments. Give positions from 0 to 0."
    )
