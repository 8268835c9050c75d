"""The search: never behind a scheme, inside what is asked for, the same every time."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest
from pipeline import found_by, network_of, stages_of
from small_steps import adam_args, adam_step, f32, sgd_args, sgd_step

import planner
from planner import search
from planner.cost.problem import cost_of, peak_of
from planner.errors import InfeasibleError, InputError
from planner.plans import Plan
from planner.sharding.spec import axes_of

MACHINE = "tpu_v5e:2x4"
# Large enough that communication is worth its start-up. No array of these sizes is ever made.
LARGE = adam_args(batch=4096, inputs=2048, hidden=8192, outputs=2048)


def same_but_for_the_clock(one: Plan, other: Plan) -> bool:
    return dataclasses.replace(one, seconds={}) == dataclasses.replace(other, seconds={})


@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}], ids=str)
@pytest.mark.parametrize("args", [adam_args(), LARGE], ids=["small", "large"])
def test_the_chosen_plan_is_never_behind_a_scheme(args, mesh):
    plan = planner.plan(adam_step, *args, machine=MACHINE, mesh=mesh)
    chosen, *schemes = plan.schemes
    assert chosen.scheme == "chosen"
    assert (chosen.step_seconds, chosen.peak_bytes) == (plan.step_seconds, plan.peak_bytes)
    assert {"data", "zero1", "fsdp", "tensor_1d"} <= {row.scheme for row in schemes}
    for row in schemes:
        assert not row.fits or plan.step_seconds <= row.step_seconds
        assert row.step_seconds == pytest.approx(row.compute_seconds + row.exposed_seconds)
    assert plan.lower_bound_seconds <= plan.summed_seconds


def test_over_all_meshes_no_scheme_on_any_is_better():
    plan = planner.plan(adam_step, *LARGE, machine=MACHINE)
    assert math.prod(plan.mesh.values()) == 8
    for row in plan.schemes[1:]:
        assert plan.step_seconds <= row.step_seconds or not row.fits
    for mesh in ({"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 4}):
        fixed = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh=mesh)
        assert plan.lower_bound_seconds <= fixed.summed_seconds


def test_a_scheme_finds_its_mesh_though_it_splits_a_torus_axis():
    plan = planner.plan(adam_step, *LARGE, machine="tpu_v5e:4x4", schemes=["tensor_3d"])
    assert plan.mesh == {"x": 2, "y": 2, "z": 4}


def test_a_scheme_without_any_mesh_says_which_were_tried():
    odd = adam_args(batch=3, inputs=5, hidden=7, outputs=3)
    with pytest.raises(InputError, match="No scheme among tensor_3d can be used on the mesh x=16 or x=4 x"):
        planner.plan(adam_step, *odd, machine="tpu_v5e:4x4", schemes=["tensor_3d"])


@pytest.mark.parametrize("scheme", ["data", "zero1", "fsdp"])
def test_a_plan_stays_inside_the_schemes_that_are_asked_for(scheme):
    plan = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh={"x": 8}, schemes=[scheme])
    assert plan.scheme == scheme
    assert [row.scheme for row in plan.schemes] == ["chosen", scheme]
    split = {leaf.path: bool(axes_of(leaf.spec)) for leaf in plan.arguments}
    wanted = {
        "params": scheme == "fsdp",
        "mean": scheme != "data",
        "square": scheme != "data",
    }
    for kind, is_split in wanted.items():
        assert {split[f"state.{kind}.{name}"] for name in ("w1", "w2")} == {is_split}
    assert {leaf.spec for leaf in plan.arguments if leaf.path.startswith("batch")} == {(("x",), ())}


def test_of_several_schemes_the_cheapest_is_taken():
    plan = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh={"x": 8}, schemes=["tensor_1d", "data"])
    rows = {row.scheme: row.step_seconds for row in plan.schemes}
    assert plan.scheme == min(("data", "tensor_1d"), key=rows.__getitem__)
    assert plan.step_seconds == min(rows.values())


def test_a_memory_limit_that_only_fsdp_meets_gives_fsdp():
    rows = {}
    for scheme in ("data", "zero1", "fsdp"):
        (_, row) = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh={"x": 8}, schemes=[scheme]).schemes
        rows[scheme] = row
    assert rows["fsdp"].peak_bytes < rows["zero1"].peak_bytes < rows["data"].peak_bytes
    between = (rows["fsdp"].peak_bytes + rows["zero1"].peak_bytes) / 2
    fraction = between / (16 * 2**30)
    limited = {"machine": MACHINE, "mesh": {"x": 8}, "memory_fraction": fraction}
    plan = planner.plan(adam_step, *LARGE, schemes=["data", "zero1", "fsdp"], **limited)
    assert plan.scheme == "fsdp"
    assert plan.peak_bytes <= between
    with pytest.raises(InfeasibleError):
        planner.plan(adam_step, *LARGE, schemes=["data", "zero1"], **limited)


def test_a_tighter_limit_is_kept_and_never_faster():
    seconds = []
    for fraction in (0.9, 0.012, 0.008):
        plan = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh={"x": 8}, memory_fraction=fraction)
        assert plan.peak_bytes <= plan.limit_bytes == fraction * 16 * 2**30
        seconds.append(plan.step_seconds)
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("mesh", [None, {"x": 2, "y": 4}], ids=str)
def test_two_calls_give_identical_plans(mesh):
    one, other = (planner.plan(adam_step, *adam_args(), machine=MACHINE, mesh=mesh) for _ in range(2))
    assert same_but_for_the_clock(one, other)


def test_arrays_and_shapes_give_the_same_plan():
    shapes = adam_args()
    arrays = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes)
    one = planner.plan(adam_step, *shapes, machine=MACHINE, mesh={"x": 8})
    assert same_but_for_the_clock(one, planner.plan(adam_step, *arrays, machine=MACHINE, mesh={"x": 8}))


def test_the_names_of_the_axes_are_the_users():
    one = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh={"x": 4, "y": 2})
    other = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh={"data": 4, "model": 2})
    assert other.mesh == {"data": 4, "model": 2}
    assert one.step_seconds == other.step_seconds
    renamed = {"x": "data", "y": "model"}
    for mine, theirs in zip(one.arguments, other.arguments, strict=True):
        assert tuple(tuple(renamed[axis] for axis in dim) for dim in mine.spec) == theirs.spec


def test_a_pin_is_a_restriction_too():
    free = planner.plan(sgd_step, *sgd_args(), machine=MACHINE, mesh={"x": 8})
    for spec in ((("x",), ()), ((), ("x",)), ((), ())):
        pinned = planner.plan(sgd_step, *sgd_args(), machine=MACHINE, mesh={"x": 8}, pins={"params.w1": spec})
        assert pinned.argument_specs["params.w1"] == spec
        assert free.lower_bound_seconds <= pinned.summed_seconds


def test_the_best_candidate_is_the_choice_it_says():
    stages = stages_of(adam_step, *adam_args(), network=network_of(MACHINE, x=2, y=4))
    found = found_by(stages)
    problem, choice = found.best.tables.problem, found.best.choice
    assert cost_of(problem, choice.choice) == pytest.approx(choice.cost)
    assert peak_of(problem, choice.choice) == pytest.approx(choice.peak)
    assert found.rows[0].step_seconds == found.best.seconds <= choice.cost * (1 + 1e-6)
    assert set(found.seconds) == {"cost", "solve"}


def test_meshes_that_the_time_runs_out_for_are_named():
    plan = planner.plan(sgd_step, *sgd_args(), machine=MACHINE, seconds=0.0)
    assert plan.mesh == {"x": 8}
    assert plan.notes == (
        "There was no time for the meshes x=2 x y=4, x=2 x y=2 x z=2 in 0 s; allow more with seconds=.",
    )
    assert {row.scheme: row.applies for row in plan.schemes}["tensor_3d"] == "no time for its meshes"


def test_progress_is_told_in_order():
    told = []
    planner.plan(
        sgd_step, *sgd_args(), machine=MACHINE, progress=lambda stage, part: told.append((stage, part))
    )
    assert told[0] == ("walking the step", 0.0)
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert all(0 <= part <= 1 for part in parts)
    assert all(stage.startswith("mesh ") for stage, _ in told[1:])


def test_a_step_of_one_device_is_planned():
    plan = planner.plan(sgd_step, *sgd_args(), machine="tpu_v5e:1x1")
    assert (plan.mesh, plan.wire_bytes, plan.exposed_seconds) == ({"x": 1}, 0.0, 0.0)


def test_a_step_without_anything_to_split_is_planned():
    plan = planner.plan(lambda x: x + 1.0, f32(), machine=MACHINE, mesh={"x": 8})
    assert plan.argument_specs == {"x": ()}


def test_an_interrupted_search_gives_the_best_of_what_it_tried(monkeypatch):
    solve, calls = search.SOLVERS["auto"], []

    def interrupted(problem, **keywords):
        calls.append(problem)
        choice = solve(problem, **keywords)
        return dataclasses.replace(choice, stopped="interrupted") if len(calls) == 3 else choice

    monkeypatch.setitem(search.SOLVERS, "auto", interrupted)
    plan = planner.plan(sgd_step, *sgd_args(), machine=MACHINE)
    assert len(calls) == 3
    assert plan.notes == ("The search was interrupted; this is the best of what it had tried.",)
    assert plan.step_seconds == min(row.step_seconds for row in plan.schemes)


def test_every_solver_finds_the_same_optimum():
    steps = {
        solver: planner.plan(
            sgd_step, *sgd_args(), machine=MACHINE, mesh={"x": 8}, solver=solver
        ).step_seconds
        for solver in search.SOLVERS
    }
    assert set(steps) == {"auto", "elimination", "ilp"}
    assert steps["elimination"] == pytest.approx(steps["auto"], rel=1e-9)
    assert steps["ilp"] == pytest.approx(steps["auto"], rel=1e-6)


def test_a_scheme_that_cannot_be_used_says_why():
    plan = planner.plan(sgd_step, *sgd_args(), machine=MACHINE, mesh={"x": 8})
    why = {row.scheme: row.applies for row in plan.schemes}
    assert (why["data"], why["tensor_3d"]) == ("", "needs other mesh axes")
