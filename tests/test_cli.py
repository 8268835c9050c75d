"""The command line: every mistake is a sentence with a remedy and the right exit status, and no traceback."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest
from handmade import make_plan

import planner
from planner.__main__ import main
from planner.errors import InfeasibleError

ROOT = pathlib.Path(__file__).parent.parent

# A command, and below it how the sentence that it gets begins.
MISTAKES = """
plann
    There is no command 'plann'; choose one of calibrate, compare, diff, machines, plan, show,
plan --modle=gpt
    Unknown command line flag 'modle'. Did you mean: model. See `python -m planner
calibrate --machine=cpu:8
    Say where to keep what is measured: --out=machine.json.
plan --model=mlp --machine=nowhere.json
    'nowhere.json' cannot be read (No such file or directory). Check the path, or calibrate first.
plan --seed=x
    flag --seed=x: invalid literal for int() with base 10: 'x'. See `python -m plann
plan
    Say what to plan: either --model=gpt, or --step=package.module:function.
plan gpt
    'gpt' is no flag. Write flags as --name=value.
plan --model=gpt --step=a:b
    Say what to plan: either --model=gpt, or --step=package.module
plan --model=gpt --mesh=data
    --mesh has 'data', no axis and size. Write it as data=4,model=2.
plan --model=gpt --mesh=d=2,d=4
    --mesh names the axis 'd' twice. Give every axis once.
plan --model=gpt --mesh=d=0
    --mesh has 'd=0', no axis and size. Write it as data=4,model=2.
plan --model=gpt '--pins=P(x)'
    --pins has 'P(x)', no path and spec. Write it as 'batch.x=P(da
plan --model=gpt --pins=a=x
    --pins has 'a=x', no path and spec. Write it as 'batch.x=P(data,
plan --model=gpt --set=layers
    --set has 'layers', no setting. Write it as layers=48,batch=64.
plan --model=gppt
    There is no model 'gppt'; choose one of alexnet, densenet, gpt
plan --model=gpt --config=huge
    Model 'gpt' has no config 'huge'; choose one of tiny, gpt2_sm
plan --model=gpt --set=layer=3
    Model 'gpt' has no setting 'layer'; choose among batch,
plan --step=a:b --set=layers=3
    --set and --config belong to --model; write the settings int
plan --step=nothing
    --step=nothing names no function. Write it as package.module:function.
plan --step=no_such:f
    --step=no_such:f cannot be loaded: No module named 'no_such'. Check the
plan --step=os:no_such
    --step=os:no_such cannot be loaded: module 'os' has no attribute 'no_su
plan --step=os:getcwd
    --step=os:getcwd returned str. Let it return (train_step, args), or an ob
plan --step=os:abort_ --json
    Missing value for flag --json. See `python -m planner --help`.
plan --step=handmade:leaf
    --step=handmade:leaf failed with TypeError: leaf() missing 4 required
train --model=gpt --steps=1
    --steps is 1; the first step compiles, so give 2 or more.
show
    show takes one plan file. Write it as `python -m planner show plan.json`.
diff a.json
    diff takes two plan files. Write it as `python -m planner diff old.json new.json`.
show no_such.json
    'no_such.json' cannot be read (No such file or directory). Check the path, o
machines --machine=tpu_v9:4x4
    Unknown chip 'tpu_v9'; did you mean
"""


def command(capsys, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of one command."""
    status = main(["meshwright", *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("mistake", MISTAKES.strip().replace("\n    ", "\t").splitlines())
def test_bad_input_is_one_sentence_and_exit_2(capsys, mistake):
    words, said = mistake.split("\t")
    status, out, err = command(capsys, *shlex.split(words))
    assert status == 2
    assert out == ""
    assert err.startswith(f"meshwright: {said}")
    assert err.count("\n") == 1


def test_help_names_every_command_and_flag(capsys):
    status, out, _ = command(capsys, "--help")
    assert status == 0
    for word in (
        "plan ",
        "compare ",
        "train ",
        "show ",
        "diff ",
        "calibrate ",
        "machines ",
        "--step ",
        "--memory_fraction ",
    ):
        assert f"  {word}" in out
    assert command(capsys)[0] == 2


def test_a_plan_writes_its_timeline(capsys, tmp_path):
    file = tmp_path / "step.json"
    words = ("plan", "--step=tests.small_steps:bad_batch", "--machine=tpu_v5e:1x1", f"--trace={file}")
    assert command(capsys, *words)[0] == 0
    assert {event["ph"] for event in json.loads(file.read_text())["traceEvents"]} == {"M", "X", "C"}


def test_show_and_diff_read_saved_plans(capsys, tmp_path):
    old, new = str(tmp_path / "old.json"), str(tmp_path / "new.json")
    make_plan(3).save(old)
    make_plan(4).save(new)
    status, out, _ = command(capsys, "show", old, f"--json={tmp_path / 'shown.json'}")
    assert status == 0
    assert "state.params.layers.*.w1" in out
    assert json.loads((tmp_path / "shown.json").read_text())["step_seconds"] == make_plan().step_seconds
    status, out, _ = command(capsys, "show", old, "--value=batch.inputs")
    assert (status, out.splitlines()[0]) == (0, "batch.inputs  i32[16,256]")
    status, out, _ = command(capsys, "diff", old, new)
    assert status == 0
    assert "argument state.params.layers.3.w1: new, P(-, model), x1" in out
    assert command(capsys, "diff", old, old)[1] == "The two plans are the same.\n"


def test_json_that_cannot_be_written_is_said(capsys, tmp_path):
    status, _, err = command(capsys, "machines", f"--json={tmp_path / 'no' / 'file.json'}")
    assert status == 2
    assert "cannot be written (No such file or directory). Name a file in a folder that exists." in err


def test_the_flags_reach_the_planner(capsys, tmp_path, monkeypatch):
    seen = {}

    def plan(step, *args, **choices):
        seen.update(choices, arity=len(args), progress=callable(choices["progress"]))
        return make_plan()

    monkeypatch.setattr(planner, "plan", plan, raising=False)
    flags = ["--machine=cpu:8", "--mesh=data=4,model=2", "--pins=batch.*=P(data, -)", "--schemes=fsdp,data"]
    more = ["--memory_fraction=0.5", "--seconds=3", "--seed=7", f"--out={tmp_path / 'p.json'}"]
    more += ["--solver=ilp", "--save-problem=p.json"]
    status, out, _ = command(capsys, "plan", "--step=command_steps:pair", *flags, *more)
    assert status == 0
    assert "where the arguments are kept" in out
    assert planner.load(tmp_path / "p.json") == make_plan()
    assert seen == {
        "arity": 2,
        "machine": "cpu:8",
        "memory_fraction": 0.5,
        "mesh": {"data": 4, "model": 2},
        "progress": True,
        "pins": {"batch.*": (("data",), ())},
        "schemes": ("fsdp", "data"),
        "seconds": 3.0,
        "seed": 7,
        "solver": "ilp",
        "problem_file": "p.json",
    }


@pytest.mark.parametrize("target", ["pair", "parts", "example"])
def test_a_step_of_your_own_comes_in_three_forms(target):
    from planner.jobs import step_job

    job = step_job(f"command_steps:{target}")
    assert callable(job.step)
    assert [leaf.shape for leaf in job.args] == [(8, 4), (2, 8)]
    assert (job.init is None) == (target != "example")


def test_no_plan_fits_is_exit_3(capsys, monkeypatch):
    def plan(*_, **__):
        raise InfeasibleError("No plan fits: 3 GiB are short. Use more devices.")

    monkeypatch.setattr(planner, "plan", plan, raising=False)
    status, _, err = command(capsys, "plan", "--step=command_steps:pair")
    assert (status, err) == (3, "meshwright: No plan fits: 3 GiB are short. Use more devices.\n")


def test_an_interrupt_is_exit_130(capsys, monkeypatch):
    def plan(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "plan", plan, raising=False)
    status, _, err = command(capsys, "plan", "--step=command_steps:pair")
    assert (status, err) == (130, "meshwright: interrupted; nothing more was written.\n")


def program(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m planner` in a process of its own, where the steps of the tests can be imported."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "planner", *words]
    return subprocess.run(command, cwd=ROOT / "tests", env=env, capture_output=True, text=True, check=False)


def test_python_dash_m_is_the_same_program():
    done = program("plann")
    assert done.returncode == 2
    assert done.stderr.startswith("meshwright: There is no command 'plann'")


def test_train_measures_the_plan_and_a_scheme_on_the_same_data(tmp_path):
    flags = ["--machine=cpu:2", "--steps=3", "--beside=data", "--seed=1", f"--json={tmp_path / 'run.json'}"]
    done = program("train", "--step=command_steps:example", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert "measured on this machine" in done.stdout
    chosen, data = json.loads((tmp_path / "run.json").read_text())["runs"]
    assert (chosen["name"], data["name"]) == ("chosen", "data")
    assert len(chosen["losses"]) == 3
    assert chosen["losses"] == pytest.approx(data["losses"], rel=1e-5)
    assert chosen["measured_seconds"] > 0
    assert chosen["predicted_seconds"] <= data["predicted_seconds"]


def test_train_needs_data():
    done = program("train", "--step=command_steps:pair", "--machine=cpu:2")
    assert done.returncode == 2
    assert done.stderr == (
        "meshwright: command_steps:pair has shapes but no data. To train it, return an object with step, "
        "init, batch and make_batch.\n"
    )
