"""Bad input: one sentence that says what is wrong, and a remedy. The wording is part of the interface."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import small_steps
from jax.sharding import PartitionSpec as P
from small_steps import adam_args, adam_step, sgd_args, sgd_step

import planner
from planner.errors import InputError, PinError, PlanFileError, PlannerError, TraceError
from planner.pins import pin_from

ROOT = pathlib.Path(__file__).parent.parent
MACHINE = "tpu_v5e:2x4"
SCHEMES = "data, zero1, fsdp, tensor_1d, tensor_1d_sp, fsdp_tensor, tensor_2d, tensor_3d"


def refused(kind: type[PlannerError], step=sgd_step, args=None, **keywords) -> str:
    """The message with which planning refuses; the error is of exactly this kind and exits with 2."""
    with pytest.raises(PlannerError) as caught:
        planner.plan(step, *(args or sgd_args()), **({"machine": MACHINE} | keywords))
    assert type(caught.value) is kind
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_a_batch_that_the_devices_cannot_share():
    assert refused(InputError, args=sgd_args(batch=30)) == (
        "The batch has 30 examples, which 8 devices cannot share evenly. Use 24 or 32 examples, or fix a "
        "mesh "
        "with an axis that divides 30 (mesh=)."
    )


@pytest.mark.parametrize(("batch", "mesh"), [(24, None), (32, None), (30, {"x": 2, "y": 4})])
def test_the_remedies_for_a_batch_are_true(batch, mesh):
    plan = planner.plan(sgd_step, *sgd_args(batch=batch), machine=MACHINE, mesh=mesh)
    assert plan.step_seconds > 0


def test_a_batch_smaller_than_the_devices_is_taken():
    assert planner.plan(sgd_step, *sgd_args(batch=4), machine=MACHINE, mesh={"x": 8}).step_seconds > 0


MISTAKES = {
    "unknown chip": (
        {"machine": "tpu_v9:2x4"},
        "Unknown chip 'tpu_v9'; did you mean tpu_v5p or tpu_v4 or tpu_v6e?",
    ),
    "no such topology": (
        {"machine": "tpu_v5e:3x4"},
        "tpu_v5e has no slice of shape 3x4; the nearest are 2x4, 4x4, 4x8.",
    ),
    "no machine at all": (
        {"machine": "eight gpus"},
        "Unknown chip 'eight gpus'; write cpu, or one of gpu_a100_sxm_40gb, ",
    ),
    "a mesh of other devices": (
        {"mesh": {"x": 2, "y": 3}},
        "Mesh x=2, y=3 has 6 devices but tpu_v5e:2x4 has 8; choose axis sizes whose product is 8.",
    ),
    "a mesh without axes": (
        {"mesh": {}},
        "Mesh without axes has 1 devices but tpu_v5e:2x4 has 8; choose axis sizes whose product is 8.",
    ),
    "an axis of size zero": (
        {"mesh": {"x": 0}},
        "Mesh axis 'x' has size 0; give a whole number of at least 1.",
    ),
    "unknown scheme": ({"schemes": ["zero9"]}, f"There is no scheme 'zero9'; choose among {SCHEMES}."),
    "one scheme as text": (
        {"schemes": "fsdp"},
        "schemes is the text 'fsdp'; give a list of names, like ['fsdp'].",
    ),
    "unknown solver": ({"solver": "magic"}, "There is no solver 'magic'; choose one of auto"),
    "no memory": ({"memory_fraction": 0}, "memory_fraction is 0; give a part of the memory, like 0.9."),
    "too much memory": ({"memory_fraction": 2}, "memory_fraction is 2; give a part of the memory, like 0.9."),
    "memory as text": (
        {"memory_fraction": "90%"},
        "memory_fraction is '90%'; give a part of the memory, like 0.9.",
    ),
    "nothing to donate": (
        {"donate_argnums": 2},
        "donate_argnums names argument 2, but the step is given 2 arguments. Give positions from 0 to 1.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_asked_for_must_exist(name):
    keywords, message = MISTAKES[name]
    assert refused(InputError, **keywords).startswith(message)


FORMS = "give a PartitionSpec of axis names, such as P('x', None), or text: 'P(x, ?)', 'x@0' or '!x'."

PINS = {
    "matches nothing": (
        {"params.w9": P("x")},
        "The pin 'params.w9' matches no argument. Paths look like 'params.w1' or 'batch.y'; * stands for any "
        "text.",
    ),
    "does not divide": (
        {"params.w2": P(None, "x")},
        "The pin P(-, x) does not divide params.w2: dim 1 has 12 elements, which 8 pieces cannot share "
        "evenly. "
        "Pin another dim, or choose a size that 8 divides.",
    ),
    "unknown axis": (
        {"params.w?": P("model")},
        "The pin on params.w1 names the axis 'model', but the mesh has x. Use these names, or fix the mesh "
        "(mesh=).",
    ),
    "one axis twice": (
        {"params.w1": P("x", "x")},
        "The pin 'params.w1' = P(x, x) uses an axis twice. Give each axis to one dim.",
    ),
    "too many dims": (
        {"params.w1": P(None, None, "x")},
        "The pin 'params.w1' gives 3 dims, but the value has 2. Give at most 2 entries.",
    ),
    "text": (
        {"params.w1": "x"},
        "The pin 'params.w1' is 'x'; " + FORMS,
    ),
    "nothing": (
        {"params.w1": None},
        "The pin 'params.w1' is None; " + FORMS,
    ),
    "no axis names": (
        {"params.w1": (0, None)},
        "The pin 'params.w1' is (0, None); " + FORMS,
    ),
    "no dict": (
        ["params.w1"],
        "pins is ['params.w1']; give a dict of paths and PartitionSpecs, like {'batch.*': P('x')}.",
    ),
}


@pytest.mark.parametrize("name", PINS)
def test_pins_must_hold(name):
    pins, message = PINS[name]
    assert refused(PinError, args=sgd_args(outputs=12), mesh={"x": 8}, pins=pins) == message


def test_a_pin_that_no_mesh_can_hold_is_explained_on_the_richest_one():
    message = refused(PinError, args=sgd_args(outputs=9), pins={"params.w2": P("x", "y")})
    assert message.startswith(
        "The pin P(x, y) does not divide params.w2: dim 1 has 9 elements, which 2 pieces"
    )


def test_a_single_element_cannot_be_split():
    def scaled(params, scale):
        return jax.tree.map(lambda p: p * scale[0], params), scale

    args = (small_steps.weights(), small_steps.f32(1))
    assert refused(PinError, scaled, args, mesh={"x": 8}, pins={"*": P("x")}) == (
        "The pin '*' = P(x) splits scale, which is a single element. Leave it out of the pin."
    )


def test_pins_hold_and_the_last_one_that_names_a_value_counts():
    pins = {"params.*": P(), "params.w2": P("x"), "batch.*": (("x",),)}
    plan = planner.plan(sgd_step, *sgd_args(), machine=MACHINE, mesh={"x": 8}, pins=pins)
    assert plan.argument_specs == {
        "params.w1": ((), ()),
        "params.w2": (("x",), ()),
        "batch.x": (("x",), ()),
        "batch.y": (("x",), ()),
    }
    assert plan.result_specs["result.0.w2"] == (("x",), ())


def test_pins_choose_among_the_meshes_that_have_their_axes():
    plan = planner.plan(sgd_step, *sgd_args(), machine=MACHINE, pins={"batch.x": P("y", "x")})
    assert set(plan.mesh) >= {"x", "y"}
    assert plan.argument_specs["batch.x"] == (("y",), ("x",))


def test_specs_come_from_partition_specs_and_tuples():
    for given in (P(("x", "y"), None), P(("x", "y")), (("x", "y"), ()), [["x", "y"]]):
        assert pin_from(given, 2, "w").exact == (("x", "y"), ())
    assert pin_from(P(), 0, "w").exact == ()


def test_a_step_that_cannot_be_traced():
    assert refused(TraceError, small_steps.branches_on_a_value) == (
        "The step branches_on_a_value cannot be traced: TracerBoolConversionError: Attempted boolean "
        "conversion "
        "of traced array with shape bool[]. Make jax.jit(branches_on_a_value) trace with these arguments "
        "first; "
        "Python values that steer the program belong in static_argnums."
    )


def test_a_step_given_the_wrong_arguments():
    assert refused(TraceError, sgd_step, sgd_args()[:1]).startswith(
        "The step sgd_step cannot be traced: TypeError: "
    )


def test_a_plan_of_another_step_is_refused(tmp_path):
    plan = planner.plan(sgd_step, *sgd_args(), machine="cpu:8", mesh={"x": 8})
    plan.save(tmp_path / "plan.json")
    with pytest.raises(PlanFileError) as caught:
        planner.plan_and_shard(adam_step, *adam_args(), plan=planner.load(tmp_path / "plan.json"))
    assert str(caught.value) == (
        "The plan was made for another step: its program or shapes differ from this one's. "
        "Plan this step again, or give the step the plan was made for."
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON, or was cut short ("),
        (lambda text: '{"learning_rate": 0.1}', "is JSON but no plan of Meshwright's. Make it anew with"),
        (lambda text: text.replace('"P(', '"Q(', 1), "is damaged: 'Q("),
        (lambda text: text.replace('"mesh"', '"mash"', 1), "is damaged: plan lacks ['mesh']. Make it anew"),
    ],
    ids=["truncated", "foreign", "corrupt", "renamed"],
)
def test_a_plan_file_that_is_none(tmp_path, spoil, message):
    path = tmp_path / "plan.json"
    planner.plan(sgd_step, *sgd_args(), machine=MACHINE, mesh={"x": 8}).save(path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(PlanFileError) as caught:
        planner.load(path)
    assert str(caught.value).startswith(f"{str(path)!r} {message}")


def program(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "planner", *words]
    return subprocess.run(command, cwd=ROOT / "tests", env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (
            ["plan", "--step=small_steps:bad_batch", f"--machine={MACHINE}"],
            2,
            "The batch has 30 examples, which",
        ),
        (
            ["plan", "--step=small_steps:untraceable", f"--machine={MACHINE}"],
            2,
            "The step branches_on_a_value",
        ),
        (
            ["plan", "--step=small_steps:too_big", f"--machine={MACHINE}", "--mesh=x=8"],
            3,
            "No plan fits: the leanest one found needs ",
        ),
    ],
    ids=["batch", "trace", "memory"],
)
def test_the_command_says_one_line_and_exits(words, status, said):
    done = program(*words)
    assert done.returncode == status
    assert done.stderr.startswith(f"meshwright: {said}")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_arrays_that_are_there_are_not_needed():
    """The same refusals for arrays as for shapes: nothing is run before the checks."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sgd_args(batch=30))
    assert refused(InputError, args=zeros) == refused(InputError, args=sgd_args(batch=30))
