"""The public calls, as a user makes them: on his own mesh, with a plan from a file, with pins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import planner


def init(key):
    up, down = jax.random.split(key)
    return {"up": jax.random.normal(up, (32, 64)) / 6, "down": jax.random.normal(down, (64, 32)) / 8}


def train_step(state, x):
    def loss(state):
        return jnp.mean((jax.nn.relu(x @ state["up"]) @ state["down"] - x) ** 2)

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), {"loss": value}


SHAPES = jax.eval_shape(init, jax.random.key(0)), jax.ShapeDtypeStruct((16, 32), jnp.float32)
X = np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32)


def check(step):
    """The sharded step does what the plain one does."""
    state = step.init(init, jax.random.key(0))
    wanted_state, wanted = jax.jit(train_step)(jax.jit(init)(jax.random.key(0)), X)
    state, metrics = step(state, step.put(X, first=1))
    assert float(metrics["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state, wanted_state)


def test_an_explicit_mesh_of_the_user_becomes_auto_on_the_same_devices():
    mesh = jax.make_mesh((4, 2), ("data", "model"), devices=jax.devices()[::-1])
    step = planner.plan_and_shard(train_step, *SHAPES, mesh=mesh)
    assert dict(step.plan.mesh) == {"data": 4, "model": 2}
    assert [d.id for d in step.mesh.devices.flat] == [d.id for d in mesh.devices.flat]
    assert set(step.mesh.axis_types) == {jax.sharding.AxisType.Auto}
    check(step)


def test_an_explicit_mesh_around_the_call():
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        step = planner.plan_and_shard(train_step, *SHAPES, mesh={"x": 8})
    check(step)


def test_the_users_own_constraints_give_way_to_the_plan():
    mine = NamedSharding(
        jax.make_mesh((8,), ("mine",), axis_types=(jax.sharding.AxisType.Auto,)), PartitionSpec("mine")
    )

    def constrained(state, x):
        return train_step(state, jax.lax.with_sharding_constraint(x, mine))

    step = planner.plan_and_shard(constrained, *SHAPES, mesh={"x": 4, "y": 2}, schemes=("tensor_2d",))
    check(step)


def test_a_plan_from_a_file_runs(tmp_path):
    planner.plan(train_step, *SHAPES, machine="cpu:8", schemes=("fsdp",)).save(tmp_path / "plan.json")
    step = planner.plan_and_shard(train_step, *SHAPES, plan=planner.load(tmp_path / "plan.json"))
    assert step.plan.scheme == "fsdp"
    check(step)


def test_pins_hold_in_the_running_step():
    pins = {"state.up": PartitionSpec(None, "model"), "x": PartitionSpec("data")}
    step = planner.plan_and_shard(train_step, *SHAPES, mesh={"data": 4, "model": 2}, pins=pins)
    state = step.init(init, jax.random.key(0))
    assert state["up"].sharding.spec == PartitionSpec(None, "model")
    check(step)


def test_specs_are_pytrees_shaped_like_arguments_and_result():
    plan = planner.plan(train_step, *SHAPES, machine="tpu_v5e:2x4", schemes=("data",))
    state, x = plan.in_specs
    assert x == PartitionSpec("x", None)
    assert state == {"up": PartitionSpec(None, None), "down": PartitionSpec(None, None)}
    assert plan.out_specs == (state, {"loss": PartitionSpec()})


def test_a_jitted_step_keeps_its_static_arguments():
    def scaled(state, x, times):
        return train_step(state, x * times)

    step = planner.plan_and_shard(
        jax.jit(scaled, static_argnums=2, donate_argnums=0), *SHAPES, 1, mesh={"x": 8}, schemes=("data",)
    )
    state = step.init(init, jax.random.key(0))
    _, metrics = step(state, step.put(X, first=1), 1)
    wanted = jax.jit(train_step)(jax.jit(init)(jax.random.key(0)), X)[1]
    assert float(metrics["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-5)


def test_compare_has_the_named_schemes_beside_the_chosen_plan():
    plan = planner.compare(train_step, *SHAPES, machine="cpu:8")
    names = [row.scheme for row in plan.schemes]
    assert names[0] == "chosen"
    assert {"data", "zero1", "fsdp", "tensor_1d", "tensor_2d", "tensor_3d"} <= set(names)
    assert all(plan.step_seconds <= row.step_seconds for row in plan.schemes)
