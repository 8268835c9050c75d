"""The solver benchmarks run on small files, and write down what they measured."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np
from test_solvers import ladder

from planner.cost.problem import Problem, Usage
from planner.cost.saving import in_whole_numbers, save
from planner.solvers import ilp

ROOT = pathlib.Path(__file__).parent.parent


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / name), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def tight() -> Problem:
    base = in_whole_numbers(ladder(5, 4))
    usages = tuple(Usage(v, 0, 1, np.array([4.0, 3.0, 2.0, 1.0])) for v in range(20))
    return dataclasses.replace(base, node_usages=usages, usage_limit=30.0)


def test_bench_solvers_measures_the_contests_instances_beside_the_best_team(tmp_path: pathlib.Path) -> None:
    problem = tight()
    best = ilp.solve(problem)
    save(problem, tmp_path / "asplos-2025-iopddl-T.json.gz")
    (tmp_path / "README.md").write_text(
        "| | model | mesh | nodes | edges | contest limit | XLA's cost | best team | bound |\n"
        f"| T | tiny | 1x1 | 20 | 24 | 40 s | none | {int(best.cost):,} | 1,000 |\n"
    )
    out = tmp_path / "out.json"
    given = [f"--contest={tmp_path}", "--share=0.25", f"--json={out}"]
    done = script("bench_solvers", "--only=contest", *given)
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = json.loads(out.read_text())
    assert (row["name"], row["given"], row["nodes"], row["feasible"]) == ("T", 10.0, 20, True)
    assert best.cost == row["best"] <= row["cost"] <= 1.2 * best.cost
    assert row["lower_bound"] <= best.cost
    assert row["gap"] == (row["cost"] - row["lower_bound"]) / row["cost"]
    assert row["cpu"] > 0.0
    assert 2**24 < row["rss"] < 2**34
    assert f"{row['cost'] / best.cost - 1:+.2%}" in done.stdout


def test_the_rivals_are_timed_on_any_file(tmp_path: pathlib.Path) -> None:
    save(tight(), tmp_path / "p.json")
    out = tmp_path / "out.json"
    done = script(
        "bench_pase_rivals", "--graphs=", f"--problem={tmp_path / 'p.json'}", "--budgets=1", f"--json={out}"
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["solver"]: row for row in json.loads(out.read_text())}
    assert {"exact", "auto", "mcmc, single", "mcmc, blocks", "mcmc, exact seed", "ilp"} <= set(rows)
    assert rows["auto"]["fits"]
    assert rows["mcmc, exact seed"]["fits"]
    assert rows["mcmc, exact seed"]["ratio"] <= 1.0  # it begins where the others are measured from
    assert not rows["exact"]["fits"]  # it does not know the limit
    assert rows["exact"]["cost"] < rows["auto"]["cost"]
    assert "over" in done.stdout


def test_folders_without_graphs_are_refused(tmp_path: pathlib.Path) -> None:
    done = script("bench_pase_rivals", f"--folder={tmp_path}")
    assert (done.returncode, done.stderr) == (
        2,
        f"{tmp_path} has no PaSE graphs; give their folder with --folder.\n",
    )
    done = script("bench_solvers", "--only=contest", f"--contest={tmp_path}")
    assert (done.returncode, done.stderr) == (
        2,
        f"{tmp_path} has no README.md with the instances; give their folder.\n",
    )
