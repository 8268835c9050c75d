"""Checks of what the user asked for, before any work is done: batch, schemes, solver, meshes."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from meshes.machine import Machine
from planner.errors import InputError, PlanFileError
from planner.graph.graph import Graph
from planner.graph.labels import batch_extent
from planner.plans import Plan
from planner.search import SOLVERS
from planner.sharding.named import SCHEMES


def check_names(schemes: Sequence[str] | None, solver: str, memory_fraction: float) -> None:
    """Raises InputError for a scheme or solver that does not exist, or a fraction outside (0, 1]."""
    if isinstance(schemes, str):
        raise InputError(f"schemes is the text {schemes!r}; give a list of names, like [{schemes!r}].")
    for name in schemes or ():
        if name not in SCHEMES:
            raise InputError(f"There is no scheme {name!r}; choose among {', '.join(SCHEMES)}.")
    if solver not in SOLVERS:
        raise InputError(f"There is no solver {solver!r}; choose one of {', '.join(SOLVERS)}.")
    if not isinstance(memory_fraction, numbers.Real) or not 0 < memory_fraction <= 1:
        raise InputError(f"memory_fraction is {memory_fraction!r}; give a part of the memory, like 0.9.")


def check_types(machine: Any, mesh: Any, seconds: Any) -> None:
    """Raises InputError for a machine, mesh or time limit of the wrong type."""
    if machine is not None and not isinstance(machine, str | Machine):
        raise InputError(f"machine is {machine!r}; give its name, like 'tpu_v5e:4x4'.")
    if mesh is not None and not isinstance(mesh, Mapping) and not hasattr(mesh, "axis_names"):
        raise InputError(f"mesh is {mesh!r}; give axis sizes, like {{'data': 4, 'model': 2}}, or a jax Mesh.")
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise InputError(f"seconds is {seconds!r}; give a time limit, like 30.")


def check_same_step(plan: Plan, fingerprint: str) -> None:
    """Raises PlanFileError if a plan was made for another step than the one of this fingerprint."""
    if plan.fingerprint != fingerprint:
        raise PlanFileError(
            "The plan was made for another step: its program or shapes differ from this one's. "
            "Plan this step again, or give the step the plan was made for."
        )


def check_batch(graph: Graph, machine: Machine, fixed: bool) -> None:
    """Raises InputError if there are at least as many examples as devices, but not the same number for each.

    A fixed mesh is the user's word that the batch is meant to be split over some of its axes only.
    """
    batch = batch_extent(graph)
    if batch is None or fixed or batch < machine.devices or batch % machine.devices == 0:
        return
    below = batch - batch % machine.devices
    raise InputError(
        f"The batch has {batch} examples, which {machine.devices} devices cannot share evenly. "
        f"Use {below} or {below + machine.devices} examples, or fix a mesh with an axis that divides {batch} "
        "(mesh=)."
    )
