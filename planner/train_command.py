"""The command `train`: runs the plan and some named schemes on the same data, and says what each one took."""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import planner
from meshes.machine import cpu_devices
from planner import training
from planner.errors import InputError
from planner.jobs import Job
from planner.plans import as_json, load
from planner.report.tables import Measured, console, footnotes, measured_table, paragraph
from planner.report.words import headline

Step = tuple[float, float]  # seconds and loss


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
    if cpu_devices(machine):
        training.use_cpu_devices(cpu_devices(machine))
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
    trainings = {
        name: training.train(step, init=job.init, make_batch=job.make_batch, seed=choices["seed"])
        for name, step in sharded.items()
    }
    seen = _in_turn(trainings, steps)
    rows = [_measured(name, step.plan.step_seconds, seen[name]) for name, step in sharded.items()]
    screen.print(paragraph([""]), measured_table(rows), paragraph(["", *footnotes(sharded["chosen"].plan)]))
    if out:
        sharded["chosen"].plan.save(out)
    return {"plan": as_json(sharded["chosen"].plan), "runs": [dataclasses.asdict(row) for row in rows]}


def _in_turn(trainings: Mapping[str, Iterator[Step]], steps: int) -> dict[str, list[Step]]:
    """`steps` steps of each training, one of each in turn, so that all meet the same load of the host."""
    seen: dict[str, list[Step]] = {name: [] for name in trainings}
    columns = (
        TextColumn("{task.description:<10} loss {task.fields[loss]}"),
        BarColumn(),
        MofNCompleteColumn(),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console()) as progress:
        tasks = {name: progress.add_task(name, total=steps, loss="  -  ") for name in trainings}
        for _ in range(steps):
            for name, training_steps in trainings.items():
                seen[name].append(next(training_steps))
                progress.update(tasks[name], advance=1, loss=f"{seen[name][-1][1]:.3f}")
    return seen


def _measured(name: str, predicted: float, seen: Sequence[Step]) -> Measured:
    seconds, losses = zip(*seen, strict=True)
    return Measured(name, predicted, statistics.median(seconds[1:]), losses)
