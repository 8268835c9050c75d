"""A plan held against the compiled program: what agrees holds, and what was broken on purpose is caught."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from command_steps import pair
from handmade import make_plan
from small_steps import f32
from steps import MESHES
from test_schemes import SMALL, step

import planner
from meshes.devices import jax_mesh
from meshes.machine import load_machine
from meshes.mesh import mesh_of
from planner import verdict as verdicts
from planner.apply import apply
from planner.compiled import compile_step, devices_of
from planner.errors import CompileError, InputError, PlanFileError
from planner.graph.graph import Site
from planner.hlo_flops import matmul_flops
from planner.jax_compat import trace_step
from planner.matching import Moved, Row, match
from planner.plans import Plan
from planner.program import Program
from planner.report.tables import console
from planner.trace import build_graph
from planner.verdict import Verification, verdict
from planner.whole import never_whole

ROOT = pathlib.Path(__file__).parent.parent


def planned(scheme: str = "fsdp_tensor", **others: Any) -> Plan:
    choices = {"mesh": MESHES[scheme], "schemes": [scheme]} if scheme else {}
    return planner.plan(step, *SMALL, machine="cpu:8", **(choices | others))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


@pytest.fixture(scope="module")
def good(plan: Plan) -> Verification:
    return planner.verify(plan, step, *SMALL)


def statuses(found: Verification) -> dict[str, int]:
    every = [row.status for row in found.rows]
    return {status: every.count(status) for status in every}


def test_a_plan_that_holds(plan: Plan, good: Verification):
    assert good.flags == ()
    assert good.holds
    assert statuses(good) == {"as planned": 11, "scalars": 1}
    assert good.wire.planned == good.wire.compiled == pytest.approx(plan.wire_bytes, rel=1e-6)
    assert good.flops.planned == good.flops.compiled > 0
    assert {row.either.axes for row in good.rows if row.status == "as planned"} >= {("x",), ("y",)}
    held = good.memory
    for side in ("planned", "compiled"):
        arguments, temporaries, outputs, aliases, peak = (
            getattr(one, side)
            for one in (held.arguments, held.temporaries, held.outputs, held.aliases, held.peak)
        )
        assert peak == pytest.approx(arguments + temporaries + outputs - aliases)
    assert held.arguments.planned == held.arguments.compiled > 0
    assert held.outputs.planned == pytest.approx(held.outputs.compiled, rel=1e-4)
    assert held.aliases.planned == held.aliases.compiled > 0


@pytest.mark.parametrize("scheme", ["data", "zero1", "fsdp", "tensor_1d", "tensor_3d", ""])
def test_the_schemes_hold(scheme: str):
    found = planner.verify(planned(scheme), step, *SMALL)
    assert [str(flag) for flag in found.flags] == []


def moves(found: Verification) -> list[Any]:
    """What the program moves, in no order."""
    every = [dataclasses.replace(row.compiled, value="", source="") for row in found.rows if row.compiled]
    return sorted(every, key=repr)


def with_site(plan: Plan, site: Site, *specs: Any) -> Plan:
    """The plan with another chain of specs at a site, or none there."""
    others = {one: chain for one, chain in plan.sites.items() if one != site}
    return dataclasses.replace(plan, sites={**others, site: specs} if specs else others)


@pytest.mark.slow
def test_every_use_that_is_dropped_is_caught_or_changes_nothing(plan: Plan, good: Verification):
    # XLA finds some of the planned ways from what is around them: then the program is the same without.
    caught = 0
    for site in [site for site in plan.sites if site.kind == "use"]:
        found = planner.verify(with_site(plan, site), step, *SMALL)
        assert found.holds == (moves(found) == moves(good)), site
        caught += not found.holds
    assert caught > 0


def swapped(spec: Any) -> Any:
    return tuple(tuple({"x": "y", "y": "x"}[axis] for axis in dim) for dim in spec)


def test_a_use_with_its_axes_swapped_is_caught(plan: Plan):
    uses = [site for site, chain in plan.sites.items() if site.kind == "use" and any(map(any, chain))]
    assert len(uses) > 4
    for site in uses[::4]:
        found = planner.verify(with_site(plan, site, *map(swapped, plan.sites[site])), step, *SMALL)
        assert not found.holds, site
        assert {flag.kind for flag in found.flags} & {"missing", "unplanned"}, site


def chain(state, x):
    hidden = jnp.tanh(x @ state["w"])
    wave = jnp.sin(hidden)
    return {"w": state["w"] - 0.1 * (x.T @ wave)}, jnp.mean(wave)


CHAIN = {"w": f32(64, 64)}, f32(64, 64)


def line(number: int) -> str:
    """One of the lines of `chain`, as flags name it."""
    return f"{pathlib.Path(__file__).name}:{chain.__code__.co_firstlineno + number}"


def chain_plan() -> Plan:
    return planner.plan(chain, *CHAIN, machine="cpu:8", mesh={"x": 2, "y": 2, "z": 2}, schemes=["data"])


def test_a_step_that_must_make_an_array_whole_to_change_its_sharding_is_caught():
    broken = with_site(chain_plan(), Site("out", (), 1, 0), ((), ("x",)), (("y", "x"), ()))
    found = planner.verify(broken, chain, *CHAIN)
    flags = [flag.what for flag in found.flags if flag.kind == "rematerialisation"]
    assert (
        "The compiler finds no way from one sharding of f32[64,32] to the next at "
        f"{line(1)}, and makes it whole on every device."
    ) in flags
    assert found.notes[0].startswith("1 arguments, 16.0 KiB on each device, are kept whole, as planned")


def test_an_array_that_is_left_whole_is_caught():
    plan = chain_plan()
    whole = {s: (((), ()),) for s, specs in plan.sites.items() if specs == ((("x", "y", "z"), ()),)}
    spoiled = dataclasses.replace(plan, sites={**plan.sites, **whole})
    traced = trace_step(chain, CHAIN)
    step = apply(spoiled, traced, jax_mesh(mesh_of(load_machine("cpu:8"), plan.mesh)))
    never = never_whole(build_graph(traced), plan)
    assert set(never.values()) == {f"dot_general ({line(1)})", f"sin ({line(2)})"}
    found = verdict(plan, compile_step(step, "spoiled"), never)
    assert {flag.what for flag in found.flags if flag.kind == "whole"} == {
        f"{name} ({at}), 16.0 KiB at {at}, is whole on every device, and was planned to be split."
        for name, at in (("dot_general", line(1)), ("sin", line(2)))
    }
    right = compile_step(apply(plan, traced, step.mesh), "as planned")
    assert verdict(plan, right, never).flags == ()


def compilations(plan: Plan, caplog: pytest.LogCaptureFixture) -> tuple[int, bool]:
    """How often three steps are compiled, each on the state of the one before, and whether that state is
    where the next step wants it."""
    sharded = planner.plan_and_shard(chain, *CHAIN, plan=plan, donate_argnums=())
    state, x = sharded.put({"w": jnp.eye(64)}, jnp.ones((64, 64)))
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for _ in range(3):
            state, _ = sharded(state, x)
    lines = [record.message for record in caplog.records if "Finished XLA compilation" in record.message]
    return sum("chain" in line for line in lines), state["w"].sharding == sharded.in_shardings[0]["w"]


def test_a_result_that_cannot_be_the_next_argument_is_caught(caplog: pytest.LogCaptureFixture):
    plan = chain_plan()
    assert planner.verify(plan, chain, *CHAIN, donate_argnums=()).flags == ()
    assert compilations(plan, caplog) == (1, True)
    results = (dataclasses.replace(plan.results[0], spec=(("x",), ())), *plan.results[1:])
    broken = dataclasses.replace(plan, results=results)
    found = planner.verify(broken, chain, *CHAIN, donate_argnums=())
    assert [flag.what for flag in found.flags if flag.kind == "second compile"] == [
        "result.0.w, which becomes state.w of the next step, has P('x', None) instead of P(None, None), so "
        "that the next step moves it first, or is compiled again."
    ]
    assert compilations(broken, caplog)[1] is False


def scanned(weights, x):
    def loss(weights):
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
        return jnp.mean(h**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def test_in_loops_collectives_and_flops_count_as_often_as_they_run():
    shapes = f32(6, 64, 64), f32(32, 64)
    plan = planner.plan(scanned, *shapes, machine="cpu:8", mesh={"x": 8}, schemes=["fsdp"])
    found = planner.verify(plan, scanned, *shapes)
    assert found.flops.compiled == found.flops.planned == 6 * 3 * 2 * 32 * 64 * 64 / 8
    (row,) = [row for row in found.rows if row.status == "as all_reduce"]
    assert row.planned is not None
    assert row.compiled is not None
    assert (row.planned.kind, row.compiled.kind) == ("reduce_scatter", "all_reduce")
    assert row.planned.runs == row.compiled.runs == 6
    assert row.planned.sent == row.compiled.sent
    assert found.holds  # the weights are gathered once for both loops


def test_a_lost_donation_is_named():
    def step(state, x):
        return {"w": (state["w"] * jnp.mean(x)).astype(jnp.bfloat16)}

    shapes = {"w": f32(64, 64)}, f32(64, 8)
    plan = planner.plan(step, *shapes, machine="cpu:8", mesh={"x": 8}, donate_argnums=0)
    found = planner.verify(plan, step, *shapes, donate_argnums=0)
    assert [str(flag) for flag in found.flags if flag.kind == "lost donation"] == [
        "state.w (2.00 KiB) is donated, but its memory is used for no result. Return a value of its shape, "
        "dtype and spec in its place, or leave it out of donate_argnums."
    ]


def program(**changes: Any) -> Program:
    """A program that does what `make_plan` plans, by hand: it has no collectives and no text."""
    empty = {"compiler": "nothing", "text": "", "donated": (), "partners": {}, "seconds": 1.0}
    sizes = {"argument_bytes": 1e9, "output_bytes": 1e9, "alias_bytes": 1e9, "temporary_bytes": 2e9}
    return Program(**{**empty, **sizes, **changes})


def flags_of(found: Verification) -> list[str]:
    return [str(flag) for flag in found.flags]


REPORT = "Report it with the plan; another scheme (schemes=) may do until it is repaired."


def test_what_is_said_of_numbers_that_differ():
    plan = dataclasses.replace(make_plan(), machine="tpu_v5e:2x4", limit_bytes=14.4e9)
    made = program(
        temporary_bytes=3e9,
        partners={0: 0, 1: 3},
        moved={1: "P('x') instead of P()"},
        remade=(("f32[8,16]", "train.py:9"), ("f32[8,16]", "train.py:9"), ("f32[4]", "")),
    )
    found = verdict(plan, made)
    assert [str(flag) for flag in found.flags] == [
        "state.params.out.b, which becomes state.params.layers.1.w1 of the next step, has P('x') instead of "
        "P(), so that the next step moves it first, or is compiled again. Plan again with this version; if "
        "it stays so, report it with the plan.",
        "The compiler finds no way from one sharding of f32[8,16] to the next at train.py:9, and makes it "
        f"whole on every device, 2 times. Pin what it is made of to one of them (pins=). {REPORT}",
        "The compiler finds no way from one sharding of f32[4] to the next, and makes it whole on every "
        f"device. Pin what it is made of to one of them (pins=). {REPORT}",
        "all_reduce over data, at train.py:12 is planned and not compiled: 42.5 MB a step, 100.0% of all "
        f"that is sent. {REPORT}",
        f"Each device sends 0 B where 42.5 MB were planned (-100.0%). {REPORT}",
        f"Over data each device sends 0 B where 42.5 MB were planned (-100.0%). {REPORT}",
        f"Each device does 0 FLOPs where 2e+09 FLOPs were planned (-100.0%). {REPORT}",
        "At its peak each device holds 3.73 GiB where 2.79 GiB were planned (+33.3%). Leave that much room: "
        "plan with a smaller memory_fraction.",
    ]


def test_small_differences_are_none():
    plan = dataclasses.replace(
        make_plan(), machine="tpu_v5e:2x4", collectives=(), flops=0.0, peak_bytes=2.8e9
    )
    assert verdict(plan, program()).flags == ()
    assert verdict(plan, program(temporary_bytes=2.08e9)).flags == ()
    assert [flag.kind for flag in verdict(plan, program(temporary_bytes=2.09e9)).flags] == ["memory"]
    small = dataclasses.replace(plan, peak_bytes=1e6)
    sizes = {"argument_bytes": 1e6, "output_bytes": 0.0, "alias_bytes": 0.0}
    assert verdict(small, program(**sizes, temporary_bytes=4e6)).flags == ()
    assert verdict(small, program(**sizes, temporary_bytes=5e6)).flags != ()
    assert verdicts.PEAK_TOLERANCE == 0.10


def moved(kind: str = "all_gather", bytes: float = 1000.0, runs: float = 1.0, source: str = "") -> Moved:
    return Moved(kind, ("x",), bytes, bytes / 2, runs, "w", source)


def test_pairs_agree_in_as_much_as_they_can():
    wanted = [moved(source="a.py:1"), moved(source="a.py:2"), moved("reduce_scatter"), moved(runs=4)]
    seen = [
        moved(source="a.py:2"),
        moved(bytes=500.0, source="a.py:1"),
        moved("all_reduce"),
        moved(runs=2),
        moved(bytes=9e3),
    ]
    assert match(wanted, seen) == (
        Row("half the bytes", wanted[0], seen[1]),
        Row("as planned", wanted[1], seen[0]),
        Row("as all_reduce", wanted[2], seen[2]),
        Row("other runs", wanted[3], seen[3]),
        Row("unplanned", None, seen[4]),
    )
    assert match([moved()], []) == (Row("missing", moved(), None),)
    each, together = moved("all_reduce", runs=4), moved("all_reduce", bytes=4000.0)
    assert match([each], [together]) == (Row("all at once", each, together),)


def test_parts_that_are_rounded_up_to_tiles_are_what_was_planned():
    scattered = moved("reduce_scatter")
    more, most, too_many = (moved("reduce_scatter", bytes=count) for count in (1010.0, 1049.0, 1051.0))
    assert match([scattered], [most, more]) == (Row("padded", scattered, more), Row("unplanned", None, most))
    assert [row.status for row in match([scattered], [too_many])] == ["missing", "unplanned"]
    assert [row.status for row in match([moved()], [moved(bytes=1010.0)])] == ["missing", "unplanned"]


def test_scalars_are_one_row():
    (row,) = match([moved(bytes=4.0), moved(bytes=8.0)], [moved(bytes=4.0)])
    assert row.status == "scalars"
    assert row.planned is not None
    assert (row.planned.runs, row.planned.sent) == (2, 6.0)
    assert row.compiled is not None
    assert row.compiled.sent == 2.0


CONVOLUTIONS = """HloModule m, num_partitions=1

%test (p: (s32[], f32[2])) -> pred[] {
  %p = (s32[], f32[2]) parameter(0)
  %n = s32[]{:T(128)} constant(12)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%body (q: (s32[], f32[2])) -> (s32[], f32[2]) {
  %q = (s32[], f32[2]) parameter(0)
  %two = s32[] constant(2)
  %j = s32[] get-tuple-element(%q), index=0
  %k = s32[] add(%j, %two)
  %a = f32[8,16]{1,0} constant(0)
  %b = f32[16,4]{1,0} constant(0)
  %c = f32[8,4]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
  %v = f32[2] get-tuple-element(%q), index=1
  ROOT %t = (s32[], f32[2]) tuple(%k, %v)
}

ENTRY %main (x: f32[1,5,3]) -> f32[1,5,2] {
  %x = f32[1,5,3]{2,1,0} parameter(0)
  %w = f32[3,3,2]{2,1,0} constant(0)
  %l = (s32[], f32[2]) while(%t0), condition=%test, body=%body
  ROOT %y = f32[1,5,2]{2,1,0} convolution(%x, %w), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
}
"""


def test_a_tpu_writes_matmuls_as_convolutions_and_loops_without_their_length():
    inside, outside = 6 * 2 * 8 * 16 * 4, 2 * (5 * 3 - 2) * 3 * 2  # two of the 15 windows meet padding
    assert matmul_flops(CONVOLUTIONS) == inside + outside


def test_another_steps_plan_is_refused(plan: Plan):
    with pytest.raises(PlanFileError, match="The plan was made for another step"):
        planner.verify(plan, *pair()[:1], *pair()[1])


def test_without_the_tpu_compiler_one_sentence_says_how_to_get_it(monkeypatch):
    machine = load_machine("tpu_v5e:2x4")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        devices_of(machine)
    assert str(caught.value) == (
        "Compiling for tpu_v5e:2x4 needs the TPU compiler, which is not installed. Get it with "
        "`pip install 'meshwright[tpu]'`; no TPU is needed."
    )


TPU_PYTHON = os.environ.get("MESHWRIGHT_TPU_PYTHON", sys.executable)


@pytest.mark.skipif(
    sys.executable == TPU_PYTHON and importlib.util.find_spec("libtpu") is None,
    reason="the TPU compiler is not installed: `pip install '.[tpu]'`, or `scripts/test --all` has its own",
)
def test_a_plan_for_a_tpu_is_compiled_ahead_of_time():
    flags = "--model=mlp", "--machine=tpu_v5e:2x4", "--schemes=data"
    done = command(*flags, python=TPU_PYTHON, JAX_PLATFORMS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("The plan holds, compiled for tpu_v5e:2x4, ahead of time.\n")
    assert "as planned   all_reduce" in done.stdout


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
            "(24.00G) exceeds available HBM (15.75G).",
            "The planned step does not fit when compiled for nothing: it needs 24.00G of the 15.75G that a "
            "device has. Plan with a smaller memory_fraction.",
        ),
        (
            "INTERNAL: Something broke.\nsee there",
            "The planned step does not compile for nothing: INTERNAL: Something broke. Report it with the "
            "plan.",
        ),
    ],
)
def test_what_xla_refuses_is_one_sentence(plan: Plan, message: str, sentence: str, monkeypatch):
    def refuse(*_: Any) -> Any:
        raise RuntimeError(message)

    sharded = apply(plan, trace_step(step, SMALL), jax_mesh(mesh_of(load_machine("cpu:8"), plan.mesh)))
    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    with pytest.raises(CompileError) as caught:
        compile_step(sharded, "nothing")
    assert str(caught.value) == sentence
    assert caught.value.exit_status == 1


def test_what_cannot_be_compiled_here_is_said():
    with pytest.raises(InputError) as caught:
        devices_of(load_machine("gpu_h100_sxm_80gb:8"))
    assert str(caught.value) == (
        "A program for gpu_h100_sxm_80gb:1x8 cannot be compiled here, where jax has cpu devices. Verify on "
        "such a machine, or plan for cpu:8 and verify that."
    )


def text_of(found: Verification) -> str:
    screen = console()
    with screen.capture() as captured:
        screen.print(found.table())
    return captured.get()


def test_the_table_says_whether_it_holds(plan: Plan, good: Verification):
    assert text_of(good).startswith("The plan holds, compiled for the cpu devices of this process.\n")
    assert "as planned   all_reduce" in text_of(good)
    broken = verdict(plan, program(compiler="nobody", temporary_bytes=9e99))
    assert text_of(broken).startswith("The plan does not hold, compiled for nobody: ")
    assert "missing" in text_of(broken)


def command(*words: str, python: str = sys.executable, **others: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT), **others}
    line = [python, "-m", "planner", "verify", *words]
    return subprocess.run(line, cwd=ROOT / "tests", env=env, capture_output=True, text=True, check=False)


def test_the_command_plans_and_verifies_then_takes_a_saved_plan(tmp_path):
    saved, result = tmp_path / "plan.json", tmp_path / "result.json"
    done = command("--step=command_steps:pair", "--machine=cpu:2", f"--out={saved}", f"--json={result}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The plan holds")
    assert json.loads(result.read_text())["holds"] is True
    done = command("--step=command_steps:pair", f"--plan={saved}", "--machine=cpu:4")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"meshwright: {saved} is a plan for cpu:2, and --machine is cpu:4. Leave --machine out, or leave "
        "--plan out to plan for it.\n"
    )
    data = json.loads(saved.read_text())
    data["plan"]["flops"] *= 2
    saved.write_text(json.dumps(data))
    done = command("--step=command_steps:pair", f"--plan={saved}", f"--json={result}")
    assert (done.returncode, done.stderr) == (1, "")
    assert "(-50.0%)" in done.stdout
    assert [flag["kind"] for flag in json.loads(result.read_text())["flags"]] == ["flops"]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="the TPU compiler is installed")
def test_the_command_says_at_once_that_there_is_no_tpu_compiler():
    done = command("--model=mlp", "--machine=tpu_v5e:2x4", "--seconds=1000")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("meshwright: Compiling for tpu_v5e:2x4 needs the TPU compiler")
