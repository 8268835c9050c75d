"""Pins on arguments, results and values inside a step: whole specs, parts of them, what is there."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from small_steps import f32, sgd_args, sgd_step

import planner
from planner.errors import InputError, PinError
from planner.sharding.pin import Pin, holds, parse, show

MACHINE = "tpu_v5e:2x4"
MESH = {"data": 4, "model": 2}
ANY = P.UNCONSTRAINED


def hidden_step(params, batch):
    def loss(params):
        hidden = batch["x"] @ params["w1"]  # the line
        named = checkpoint_name(jax.nn.relu(hidden), "hidden")
        return jnp.mean((named @ params["w2"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": value, "w1": grads["w1"]}


def line() -> str:
    lines, first = inspect.getsourcelines(hidden_step)
    return f"test_pins.py:{first + next(i for i, text in enumerate(lines) if '# the line' in text)}"


def planned(pins, step=hidden_step, **keywords) -> planner.Plan:
    return planner.plan(step, *sgd_args(), **({"machine": MACHINE, "mesh": MESH, "pins": pins} | keywords))


def refused(pins, **keywords) -> str:
    with pytest.raises(PinError) as caught:
        planned(pins, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("text", ["P((x,y), -)", "P(x, ?)", "x@0", "!model", "x@0, y@1, !z", "P(?, -), !y"])
def test_pins_print_and_parse_back(text):
    assert show(parse(text)) == text


def test_a_part_of_a_spec_leaves_the_rest_open():
    spec = (("x", "y"), ("z",))
    assert [text for text in ("P((x,y), ?)", "y@0", "!w", "x@0, z@1", "P(?, z)") if holds(parse(text), spec)]
    for text in ("P(x, ?)", "y@1", "!z", "P((y,x), ?)"):
        assert not holds(parse(text), spec)
    assert Pin((("x",), ("?",))).exact is None


def test_one_axis_of_an_argument_is_fixed_and_the_other_is_the_planners():
    plan = planned({"params.w1": "model@1", "params.w2": "!model", "batch.x": P(ANY, "model")})
    specs = plan.argument_specs
    assert "model" in specs["params.w1"][1]
    assert "model" not in sum(specs["params.w2"], ())
    assert specs["batch.x"][1] == ("model",)


def test_a_pin_on_a_result_that_replaces_an_argument_holds_for_both():
    plan = planned({"result.0.w1": P("data", "model")})
    assert plan.argument_specs["params.w1"] == plan.result_specs["result.0.w1"] == (("data",), ("model",))


def test_a_result_of_its_own_is_kept_as_pinned():
    for spec in (P("model", "data"), P(None, "model")):
        plan = planned({"result.1.w1": spec})
        assert plan.result_specs["result.1.w1"] == tuple((d,) if d else () for d in spec)


@pytest.mark.parametrize("pattern", ["hidden", "{line}", "dot_general ({line})"])
def test_values_inside_are_pinned_by_checkpoint_name_and_by_line(pattern):
    pattern = pattern.format(line=line())
    for spec in (P("data", "model"), P("model", "data"), P(None, ("data", "model"))):
        step = planner.plan_and_shard(
            hidden_step, *sgd_args(), machine="cpu:8", mesh=MESH, pins={pattern: spec}
        )
        text = step.lower().as_text()
        assert text.count("sharding_constraint") or text.count("Sharding")
        wanted = tuple((d,) if isinstance(d, str) else tuple(d or ()) for d in spec)
        assert any(chain[-1] == wanted for site, chain in step.plan.sites.items() if site.kind == "out")
    free = planned({pattern: "!model, !data"}, machine="cpu:8")
    assert free.step_seconds >= planned({}, machine="cpu:8").step_seconds


def test_the_backward_pass_of_a_line_has_a_name_of_its_own():
    plan = planned({f"{line()} backward": P(None, "model")})
    assert plan.result_specs["result.1.w1"] == ((), ("model",))


def test_a_pinned_step_still_computes_the_same():
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda s: rng.standard_normal(s.shape).astype(np.float32), sgd_args())
    pins = {
        "hidden": P("model", "data"),
        "params.w1": "data@1",
        "batch.*": "!data",
        "params.w2": P("data", ANY),
    }
    step = planner.plan_and_shard(hidden_step, *sgd_args(), machine="cpu:8", mesh=MESH, pins=pins)
    for ours, theirs in zip(
        jax.tree.leaves(step(*step.put(*args))), jax.tree.leaves(hidden_step(*args)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


MISTAKES = {
    "no such dim": (
        {"params.w1": "data@2"},
        "The pin 'params.w1' = data@2 names dim 2, but the value has 2 dims. Count the dims from 0.",
    ),
    "no pin": (
        {"params.w1": "on data"},
        "The pin 'params.w1' is 'on data'; give a PartitionSpec of axis names, such as P('x', None), or "
        "text: 'P(x, ?)', 'x@0' or '!x'.",
    ),
    "on and off": (
        {"params.w1": "data@0, !data"},
        "The pin 'params.w1' = data@0, !data uses an axis twice. Give each axis to one dim.",
    ),
    "rank inside": (
        {"hidden": P("data")},
        "The pin 'hidden' has 1 dims, but what it names inside the step has 2. Give an entry for every dim.",
    ),
    "against the order of the mesh": (
        {"hidden": P(("model", "data"), None)},
        "The pin P((model,data), -) cannot hold on name (test_pins.py:LINE), which the op that makes it can "
        "leave as P(-, -), P(model, -), P(-, model), P(data, -) and 5 others. Pin it to one of these, or pin "
        "what it is used for.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_pins_that_cannot_hold_are_explained(name):
    pins, message = MISTAKES[name]
    after = int(line().split(":")[1]) + 1
    assert refused(pins) == message.replace("LINE", str(after))


def test_two_pins_on_one_fused_op_cannot_contradict_each_other():
    def step(x):
        doubled = checkpoint_name(x * 2, "doubled")
        return checkpoint_name(jnp.sin(doubled), "waves")

    pins = {"doubled": P("data", None), "waves": P("model", None)}
    with pytest.raises(PinError) as caught:
        planner.plan(step, f32(16, 16), machine=MACHINE, mesh=MESH, pins=pins)
    assert str(caught.value) == (
        "The pins 'doubled' and 'waves' cannot hold together: what they name is made by one fused op, which "
        "is split in one way. Leave one of them out."
    )


def test_named_shardings_of_arguments_are_kept():
    mesh = jax.make_mesh((4, 2), ("data", "model"), devices=jax.devices()[:8])
    params, batch = sgd_args()
    params = dict(
        params, w1=jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, P(None, "model")))
    )
    batch = dict(batch, x=jax.device_put(np.zeros((32, 16), np.float32), NamedSharding(mesh, P("data"))))
    pins = planner.pins_of(sgd_step, params, batch)
    assert set(pins) == {"params.w1", "batch.x"}
    plan = planner.plan(sgd_step, params, batch, machine=MACHINE, mesh=MESH, pins=pins)
    assert plan.argument_specs["params.w1"] == ((), ("model",))
    assert plan.argument_specs["batch.x"] == (("data",), ())


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        ones, split = nn.initializers.ones, nn.with_logical_partitioning
        kernel = self.param("kernel", split(ones, ("embed", "mlp")), (16, 32))
        bias = self.param("bias", nn.with_partitioning(ones, ("model",)), (32,))
        return x @ kernel + bias


def linen_step(state, x):
    grads = jax.grad(lambda s: jnp.mean(Linen().apply(s, x) ** 2))(state)
    return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)


RULES = (("embed", "data"), ("mlp", "data"), ("mlp", "model"))


def test_flax_metadata_and_logical_axis_rules_are_kept():
    state = jax.eval_shape(Linen().init, jax.random.key(0), f32(32, 16))
    pins = planner.pins_of(linen_step, state, f32(32, 16), rules=RULES)
    assert pins == {
        "state.params.kernel.value": (("data",), ("model",)),
        "state.params.bias.value": (("model",),),
    }
    mapped = nn.logical_to_mesh(P("embed", "mlp"), RULES)
    assert pins["state.params.kernel.value"] == tuple((axis,) for axis in mapped)
    plan = planner.plan(linen_step, state, f32(32, 16), machine=MACHINE, mesh=MESH, pins=pins)
    assert plan.argument_specs["state.params.kernel.value"] == (("data",), ("model",))


def test_logical_names_need_rules():
    state = jax.eval_shape(Linen().init, jax.random.key(0), f32(32, 16))
    with pytest.raises(InputError) as caught:
        planner.pins_of(linen_step, state, f32(32, 16))
    assert str(caught.value) == (
        "state.params.kernel.value has the logical axes embed, mlp, which are no mesh axes. "
        "Say what they mean with rules=, like [('embed', None), ('mlp', 'model')]."
    )


def test_nnx_metadata_is_kept():
    split = nnx.with_partitioning(nnx.initializers.ones, ("embed", "model"))
    with jax.set_mesh(jax.make_mesh((1, 1), ("embed", "model"), devices=jax.devices()[:1])):
        model = nnx.Linear(16, 32, rngs=nnx.Rngs(0), kernel_init=split)
    graph, state = nnx.split(model)

    def step(state, x):
        grads = jax.grad(lambda s: jnp.mean(nnx.merge(graph, s)(x) ** 2))(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)

    bare = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    pins = planner.pins_of(step, bare, f32(32, 16), rules={"embed": None})
    assert list(pins.values()) == [((), ("model",))]
    plan = planner.plan(step, bare, f32(32, 16), machine=MACHINE, mesh=MESH, pins=pins)
    assert next(s for p, s in plan.argument_specs.items() if "kernel" in p) == ((), ("model",))


def test_a_plan_gives_pins_and_starts_a_search():
    pins = {"params.w1": P("data", "model"), "params.w2": P("model", "data")}
    old = planned(pins, step=sgd_step)
    held = planner.plan(sgd_step, *sgd_args(batch=64), machine=MACHINE, mesh=MESH, pins=old.argument_specs)
    assert held.argument_specs == old.argument_specs
    free = planner.plan(sgd_step, *sgd_args(batch=64), machine=MACHINE, mesh=MESH)
    assert free.step_seconds <= held.step_seconds
    begun = planner.plan(sgd_step, *sgd_args(batch=64), machine=MACHINE, start=old)
    assert begun.step_seconds <= held.step_seconds
    no_time = planner.plan(sgd_step, *sgd_args(batch=64), machine=MACHINE, start=old, seconds=0)
    assert no_time.mesh == MESH
    assert no_time.step_seconds <= held.step_seconds * (1 + 1e-9)


def test_a_plan_for_other_devices_cannot_be_started_from():
    old = planner.plan(sgd_step, *sgd_args(), machine="cpu:4", mesh={"x": 4})
    with pytest.raises(InputError, match=r"Mesh x=4 has 4 devices but tpu_v5e:2x4 has 8"):
        planner.plan(sgd_step, *sgd_args(), machine=MACHINE, start=old)
