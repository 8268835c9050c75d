"""The command `solve`: exact answers from files, within the time, and one sentence where there is none."""

import _thread
import dataclasses
import json
import pathlib
import threading
import time

import numpy as np
import pytest
from test_solvers import ladder, problem_at_random

from planner import solve_command
from planner.__main__ import main
from planner.clock import age_of_process, alarm
from planner.cost.contest import load
from planner.cost.problem import FORBIDDEN, Choice, Problem, Usage, cost_of, peak_of
from planner.cost.saving import in_whole_numbers, save
from planner.solvers import exhaustive

LARGE = 10**18 - 1


def solved(path: pathlib.Path, *flags: str) -> tuple[int, dict]:
    """Exit status, and what --json wrote."""
    out = path.with_suffix(".answer")
    status = main(["meshwright", "solve", f"--problem={path}", f"--json={out}", *flags])
    return status, json.loads(out.read_text())


@pytest.mark.parametrize("solver", ["auto", "elimination", "mcmc", "ilp"])
def test_the_answer_is_exactly_these_five_things(solver: str, tmp_path: pathlib.Path) -> None:
    problem = problem_at_random(3, forbid=0.0, whole=True)
    problem = dataclasses.replace(problem, node_usages=(), edge_usages=())
    save(problem, tmp_path / "p.json.gz")
    status, answer = solved(tmp_path / "p.json.gz", "--seconds=8", "--seed=1", f"--solver={solver}")
    assert status == 0
    assert list(answer) == ["choice", "cost", "lower_bound", "feasible", "seconds"]
    best = exhaustive.solve(problem)
    assert type(answer["cost"]) is int
    assert answer["cost"] == cost_of(problem, answer["choice"]) >= best.cost
    assert answer["lower_bound"] <= best.cost
    assert answer["feasible"] is True
    assert 0.0 < answer["seconds"] <= 8.0
    if solver != "mcmc":
        assert answer["cost"] == answer["lower_bound"] == best.cost


def test_the_search_is_there_for_problems_within_memory(tmp_path: pathlib.Path, capsys) -> None:
    save(crowded(20.0), tmp_path / "p.json")
    status, answer = solved(tmp_path / "p.json", "--solver=search", "--seconds=60")
    assert (status, answer["choice"], answer["feasible"]) == (0, [0] * 5, True)
    save(dataclasses.replace(crowded(20.0), usage_limit=np.inf), tmp_path / "p.json")
    assert main(["meshwright", "solve", f"--problem={tmp_path / 'p.json'}", "--solver=search"]) == 2
    assert capsys.readouterr().err == (
        "meshwright: The solver 'search' takes a problem with a usage_limit and no usages on edges; this is "
        "none. Use --solver=auto.\n"
    )


def test_costs_beyond_64_bits_are_exact(tmp_path: pathlib.Path) -> None:
    count = 40
    nodes = {"intervals": [[0, 0]] * count, "costs": [[LARGE, LARGE - 1]] * count, "usages": [[0, 0]] * count}
    edges = {"nodes": [[v, v + 1] for v in range(count - 1)], "costs": [[1, 10**18, 10**18, 2]] * (count - 1)}
    (tmp_path / "p.json").write_text(json.dumps({"problem": {"nodes": nodes, "edges": edges}}))
    status, answer = solved(tmp_path / "p.json", "--seconds=2")
    (same,) = set(answer["choice"])
    assert status == 0
    assert answer["cost"] == count * (LARGE - same) + (count - 1) * (1 + same) > 2**64
    assert answer["lower_bound"] <= answer["cost"]


def test_what_plan_saved_is_solved_to_the_same_step_time(tmp_path: pathlib.Path) -> None:
    flags = ["--step=command_steps:pair", "--machine=tpu_v5e:2x2", f"--json={tmp_path / 'plan.json'}"]
    assert main(["meshwright", "plan", *flags, f"--save-problem={tmp_path / 'p.json.gz'}"]) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    status, answer = solved(tmp_path / "p.json.gz", "--seconds=5")
    problem = load(tmp_path / "p.json.gz")
    assert status == 0
    assert answer["cost"] * 1e-12 == pytest.approx(plan["step_seconds"], rel=1e-6)
    assert peak_of(problem, answer["choice"]) <= problem.usage_limit == pytest.approx(0.9 * 16 * 2**30)


def test_the_time_includes_reading_and_a_solver_that_does_not_stop(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(problem: Problem, *, seconds: float, seed: int) -> Choice:
        del seconds, seed
        try:
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            choice = tuple(0 for _ in problem.node_costs)
            return Choice(
                choice, cost_of(problem, choice), 0.0, peak_of(problem, choice), "gap 9%, interrupted"
            )

    monkeypatch.setitem(solve_command.SOLVERS, "endless", endless)
    save(in_whole_numbers(ladder(6, 5)), tmp_path / "p.json")
    began = time.monotonic()
    status, answer = solved(tmp_path / "p.json", "--seconds=4", "--solver=endless")
    assert time.monotonic() - began < 4.0
    assert (status, answer["feasible"], set(answer["choice"])) == (0, True, {0})
    found = solve_command.solve_file(str(tmp_path / "p.json"), solver="endless", seconds=1.0, seed=0)
    assert found.found.stopped == "gap 9%, the time was up"
    late = solve_command.solve_file(
        str(tmp_path / "p.json"), solver="endless", seconds=60.0, seed=0, began=time.monotonic() - 55.0
    )
    assert late.seconds < 60.0


def test_an_interrupted_solver_that_has_nothing_is_said_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(problem: Problem, *, seconds: float, seed: int) -> Choice:
        raise KeyboardInterrupt

    monkeypatch.setitem(solve_command.SOLVERS, "interrupted", interrupted)
    problem = in_whole_numbers(ladder(2, 3))
    save(problem, tmp_path / "p.json")
    status, answer = solved(tmp_path / "p.json", "--solver=interrupted")
    cheapest = [int(costs.argmin()) for costs in problem.node_costs]
    assert (status, answer["choice"], answer["cost"]) == (0, cheapest, cost_of(problem, cheapest))
    least = (*problem.node_costs, *problem.edge_costs)
    assert answer["lower_bound"] == sum(float(table.min()) for table in least)


def test_ctrl_c_gives_the_best_so_far(tmp_path: pathlib.Path, capsys) -> None:
    problem = in_whole_numbers(ladder(30, 6))
    save(problem, tmp_path / "p.json")
    threading.Timer(1.0, _thread.interrupt_main).start()
    began = time.monotonic()
    status, answer = solved(tmp_path / "p.json", "--solver=mcmc", "--seconds=60")
    assert time.monotonic() - began < 45.0  # well before the 60 it was given
    assert status == 0
    assert answer["feasible"] is True
    assert answer["cost"] == cost_of(problem, answer["choice"])
    assert "interrupted" in capsys.readouterr().out


def crowded(limit: float) -> Problem:
    held = (8.0, 1.0, 5.0, 4.0, 1.0)
    usages = tuple(Usage(v, 2, 5, np.array([size, 90.0])) for v, size in enumerate(held))
    return Problem((np.arange(2.0),) * 5, (), (), usages, (), limit, 5)


def test_what_cannot_fit_is_said_with_a_smallest_conflict(tmp_path: pathlib.Path, capsys) -> None:
    save(crowded(14.0), tmp_path / "p.json")
    status, answer = solved(tmp_path / "p.json")
    assert status == 3
    assert answer["feasible"] is False
    assert capsys.readouterr().err == (
        "meshwright: No choice fits: at time 2 these need 17 bytes together, 3 more than the limit of 14: "
        "node 0 at least 8, node 2 at least 5, node 3 at least 4. Raise usage_limit to 17 or more, or give "
        "one of them a strategy that uses less.\n"
    )


def test_what_may_fit_is_not_said_to_be_impossible(
    tmp_path: pathlib.Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(problem: Problem, *, seconds: float, seed: int) -> Choice:
        del seconds, seed
        return Choice((1,) * 5, 5.0, 0.0, 450.0, "nothing found")

    monkeypatch.setitem(solve_command.SOLVERS, "careless", careless)
    save(crowded(100.0), tmp_path / "p.json")
    status, _ = solved(tmp_path / "p.json", "--solver=careless")
    assert status == 3
    assert capsys.readouterr().err == (
        "meshwright: No choice was found that fits: the least peak met is 450 bytes, the limit is 100, and "
        "it is not proven that none exists. Give it more time (--seconds).\n"
    )


def test_what_is_forbidden_altogether_is_said(tmp_path: pathlib.Path, capsys) -> None:
    save(Problem((np.full(2, FORBIDDEN),), (), ()), tmp_path / "p.json")
    status, answer = solved(tmp_path / "p.json")
    assert (status, answer["feasible"], answer["cost"], answer["lower_bound"]) == (3, False, 10**18, 10**18)
    assert capsys.readouterr().err == (
        "meshwright: No choice without a forbidden strategy or pair was found. Allow more of them, or give "
        "it more time (--seconds).\n"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "Say what to solve: --problem=file.json, or .json.gz."),
        (["--problem=no.json"], "no.json cannot be read (No such file or directory); give a readable file."),
        (
            ["--problem=no.json", "--solver=best"],
            "There is no solver 'best'; choose one of auto, elimination, ilp, mcmc, search.",
        ),
        (["--problem=no.json", "--seconds=0"], "--seconds is 0; give the time limit in seconds, like 60."),
        (["no.json"], "'no.json' is no flag. Write flags as --name=value."),
    ],
)
def test_bad_input_is_one_sentence(flags: list[str], said: str, capsys) -> None:
    assert main(["meshwright", "solve", *flags]) == 2
    assert capsys.readouterr().err == f"meshwright: {said}\n"


def test_the_alarm_rings_once_and_not_afterwards() -> None:
    with pytest.raises(KeyboardInterrupt), alarm(0.05) as rang:
        time.sleep(5.0)
    assert len(rang) == 1
    with alarm(0.05) as rang:
        pass
    time.sleep(0.1)
    assert rang == []
    quiet: list[list[int]] = []

    def elsewhere() -> None:
        with alarm(0.01) as rang:
            time.sleep(0.05)
        quiet.append(rang)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert quiet == [[]]


def test_a_process_has_an_age() -> None:
    first = age_of_process()
    time.sleep(0.05)
    assert 0.0 < first < age_of_process()
