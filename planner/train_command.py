"""The command `train`: runs the plan and some named schemes on the same data, and says what each one took."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import planner
from planner.errors import InputError
from planner.jobs import Job
from planner.plans import as_json, load
from planner.report.tables import Measured, console, footnotes, measured_table, paragraph
from planner.report.words import headline
from planner.training import run, use_cpu_devices


def train(
    make_job: Callable[[], Job],
    choices: Mapping[str, Any],
    *,
    plan_file: str,
    beside: Sequence[str],
    steps: int,
    out: str,
) -> dict[str, Any]:
    """Runs `steps` steps of the plan (made, or loaded) and of each scheme in `beside`, and prints a table.

    choices: the keywords of `planner.plan`. Returns what `--json` writes. Raises PlannerError for bad input.
    """
    machine = choices["machine"] or ""
    if machine.startswith("cpu:") and machine[4:].isdecimal():
        use_cpu_devices(int(machine[4:]))
    job = make_job()
    if job.init is None or job.make_batch is None:
        raise InputError(
            f"{job.name} has shapes but no data. To train it, return an object with step, init, batch and"
            " make_batch."
        )
    screen = console()
    plan = load(plan_file) if plan_file else None
    sharded = {"chosen": planner.plan_and_shard(job.step, *job.args, plan=plan, **choices)}
    for scheme in beside:
        sharded[scheme] = planner.plan_and_shard(job.step, *job.args, **{**choices, "schemes": (scheme,)})
    screen.print(paragraph(headline(sharded["chosen"].plan)))
    running = functools.partial(
        run, init=job.init, make_batch=job.make_batch, steps=steps, seed=choices["seed"]
    )
    rows = [_measured(name, step, steps, running) for name, step in sharded.items()]
    screen.print(paragraph([""]), measured_table(rows), paragraph(["", *footnotes(sharded["chosen"].plan)]))
    if out:
        sharded["chosen"].plan.save(out)
    return {"plan": as_json(sharded["chosen"].plan), "runs": [dataclasses.asdict(row) for row in rows]}


def _measured(name: str, step: Any, steps: int, running: Callable[..., Any]) -> Measured:
    words = TextColumn("{task.fields[name]:<10} loss {task.fields[loss]}")
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console()) as progress:
        task = progress.add_task("", total=steps, name=name, loss="  -  ")

        def tick(number: int, loss: float) -> None:
            progress.update(task, completed=number, loss=f"{loss:.3f}")

        seconds, losses = running(step, tick=tick)
    return Measured(name, step.plan.step_seconds, seconds, losses)
