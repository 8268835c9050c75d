"""Opaque calls: kernels, foreign functions, primitives of other libraries, and shard_maps of the user's."""

import inspect

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P
from small_steps import f32

import planner
from planner.errors import InputError, PinError, TraceError

MESH = {"data": 4, "model": 2}
SIZES = {"machine": "cpu:8", "mesh": MESH}

invented = jex.Primitive("invented")
invented.def_abstract_eval(lambda x: x)
invented.def_impl(lambda x: jnp.cumsum(x, 1))
mlir.register_lowering(invented, mlir.lower_fun(lambda x: jnp.cumsum(x, 1), multiple_results=False))


def arrays(*shapes: jax.ShapeDtypeStruct) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape.shape).astype(np.float32) for shape in shapes]


def runs_like_itself(step, *shapes: jax.ShapeDtypeStruct, **keywords) -> planner.Plan:
    """Plans, shards and runs a step on eight devices, and holds it against the step itself."""
    sharded = planner.plan_and_shard(step, *shapes, **(SIZES | keywords))
    args = arrays(*shapes)
    found = sharded(*args)
    with jax.set_mesh(sharded.mesh):
        wanted = jax.jit(step)(*args)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    return sharded.plan


def prefix_step(x, w):
    return invented.bind(jnp.tanh(x)) @ w


def test_an_invented_primitive_stays_whole_and_is_named():
    plan = runs_like_itself(prefix_step, f32(64, 32), f32(32, 16), pins={"x": P("data")})
    assert plan.unknown == {"invented": 1}
    assert any(move.kind == "all_gather" and "data" in move.axes for move in plan.collectives)


def test_an_invented_primitive_splits_as_the_users_line_says():
    keywords = {"rules": {"invented": "b s! -> b s!"}, "pins": {"x": P("data"), "result": P("data")}}
    plan = runs_like_itself(prefix_step, f32(64, 32), f32(32, 16), **keywords)
    assert not plan.unknown
    assert not plan.collectives
    verified = planner.verify(plan, prefix_step, f32(64, 32), f32(32, 16), rules=keywords["rules"])
    assert verified.holds


def double(x):
    """x doubled by a kernel, block by block."""

    def kernel(x_ref, out_ref):
        out_ref[...] = 2 * x_ref[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)


def test_a_kernel_stays_whole_and_still_runs():
    plan = runs_like_itself(lambda x: double(jnp.sin(x)), f32(64, 32), pins={"x": P("data")})
    assert plan.unknown == {"pallas_call": 1}


def test_a_kernel_with_a_rule_runs_on_parts():
    def step(x):
        return planner.with_rule(double, "a b -> a b")(jnp.sin(x))

    plan = runs_like_itself(step, f32(64, 32), pins={"x": P("data", "model"), "result": P("data", "model")})
    assert not plan.unknown
    assert not plan.collectives


def product(x, w):
    """A matmul in a kernel."""

    def kernel(x_ref, w_ref, out_ref):
        out_ref[...] = x_ref[...] @ w_ref[...]

    shape = jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x, w)


@pytest.mark.parametrize(
    ("result", "kind"), [(P(), "all_reduce"), (P("model"), None), (P(None, "model"), None)], ids=str
)
def test_partial_results_of_a_kernel_are_added_up(result, kind):
    def step(x, w):
        return planner.with_rule(product, "i k, k j -> i j", flops=2 * 64 * 32 * 16)(x, w)

    pins = {"x": P(None, "model"), "w": P("model"), "result": result}
    plan = runs_like_itself(step, f32(64, 32), f32(32, 16), pins=pins)
    assert any(move.kind in ("all_reduce", "reduce_scatter") for move in plan.collectives)
    assert kind is None or plan.collectives[0].kind == kind


def test_a_kernel_is_trained_through_a_rule_of_each_direction():
    @jax.custom_vjp
    def matmul(x, w):
        return planner.with_rule(product, "i k, k j -> i j")(x, w)

    def forward(x, w):
        return matmul(x, w), (x, w)

    def backward(saved, g):
        x, w = saved
        rule = planner.with_rule(product, "i k, k j -> i j")
        return rule(g, w.T), rule(x.T, g)

    matmul.defvjp(forward, backward)

    def step(w, x):
        def body(x, _):
            return jnp.tanh(matmul(x, w)), None

        return w - 0.1 * jax.grad(lambda w: jnp.square(jax.lax.scan(body, matmul(x, w), None, 3)[0]).mean())(
            w
        )

    plan = runs_like_itself(step, f32(16, 16), f32(64, 16), pins={"x": P("data")})
    assert plan.argument_specs["x"] == (("data",), ())


def test_a_function_that_breaks_its_rule_is_refused():
    def step(x):
        return planner.with_rule(lambda x: jnp.zeros((64, 32)) + x.sum(), "a b -> a b")(x)

    with pytest.raises(InputError) as caught:
        planner.plan_and_shard(step, f32(64, 32), **SIZES, pins={"x": P("data"), "result": P("data")})
    assert str(caught.value).startswith(
        "The function with the rule 'a b -> a b' does not run on the parts that"
    )
    assert str(caught.value).endswith("Mark what cannot be split with '!'.")


def test_a_foreign_call_is_split_by_its_wrapper():
    def factor(x):
        return jnp.linalg.cholesky(x)  # a foreign call into LAPACK, on a CPU

    def call(x):
        return planner.with_rule(factor, "b i! j! -> b i! j!")(x @ x.swapaxes(1, 2) + 9 * jnp.eye(8))

    plan = runs_like_itself(call, f32(16, 8, 8), pins={"x": P("data"), "result": P("data")})
    assert not plan.collectives


def test_jax_ffi_stays_whole_and_is_named():
    def step(x):
        name, shape = "lapack_sgetrf_ffi", jax.ShapeDtypeStruct((16, 8, 8), jnp.float32)
        pivots, info = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((16, 8), (16,)))
        return jax.ffi.ffi_call(name, (shape, pivots, info))(x)[1]

    plan = planner.plan(step, f32(16, 8, 8), **SIZES, pins={"x": P("data")})
    assert plan.unknown == {"ffi_call": 1}
    assert any(move.kind == "all_gather" for move in plan.collectives)


def ring(x, w):
    """A shard_map of the user's, which finds its mesh around it."""

    def body(x, w):
        return jax.lax.psum(x @ w, "model")

    return jax.shard_map(body, in_specs=(P("data", "model"), P("model")), out_specs=P("data"))(x, w)


def region_step(x, w):
    return jnp.tanh(ring(jnp.sin(x), w))


def line() -> int:
    lines, first = inspect.getsourcelines(ring)
    return first + next(i for i, text in enumerate(lines) if "jax.shard_map(" in text)


def test_a_shard_map_gets_its_mesh_and_is_split_as_it_says():
    plan = runs_like_itself(region_step, f32(64, 32), f32(32, 16), pins={"x": P("data", "model")})
    assert not plan.unknown
    assert not [move for move in plan.collectives if "data" in move.axes]


def test_a_shard_map_without_a_mesh_is_one_sentence():
    with pytest.raises(TraceError) as caught:
        planner.plan(region_step, f32(64, 32), f32(32, 16), machine="cpu:8")
    assert str(caught.value).startswith("The step region_step needs a mesh while it is traced: ")
    assert str(caught.value).endswith("Say which with mesh=, like {'data': 4, 'model': 2}.")


def test_a_shard_map_over_another_mesh_names_the_mesh_to_fix():
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), devices=jax.devices()[:8], axis_types=auto)

    def step(x):
        return jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    with pytest.raises(PinError) as caught:
        planner.plan(step, f32(64, 32), machine="cpu:8")
    assert "The step has a shard_map over data=4, model=2 at test_opaque.py:" in str(caught.value)
    assert str(caught.value).endswith("mesh={'data': 4, 'model': 2}.")
    assert not runs_like_itself(step, f32(64, 32)).unknown


WRONG = {
    "not there": (
        {"inventd": "b s -> b s"},
        "There is a rule for 'inventd', but the step has no such primitive. Without a rule are invented.",
    ),
    "bound to shapes": (
        {"pallas_call": "b s -> b s"},
        "A pallas_call is made for the shapes of its operands, so a rule alone cannot split it. Wrap the "
        "function that makes it: planner.with_rule(function, 'b s -> b s').",
    ),
    "another rank": (
        {"invented": "b -> b"},
        "The rule 'b -> b' gives 1 dims to a value of shape (64, 32); name every dim, '_' for extent 1.",
    ),
    "no dict": (
        ["invented"],
        "rules is ['invented']; give primitives and lines, like {'my_op': 'b i -> b i'}.",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_rules_must_fit(name):
    given, message = WRONG[name]
    with pytest.raises(InputError) as caught:
        planner.plan(prefix_step, f32(64, 32), f32(32, 16), **SIZES, rules=given)
    assert str(caught.value) == message
