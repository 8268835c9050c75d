"""Checks of what the user asked for, before any work is done: batch, schemes, pins, meshes."""

import fnmatch
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshes.machine import Machine
from meshes.mesh import LogicalMesh
from planner.errors import InputError, PinError, PlanFileError
from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph
from planner.graph.labels import batch_extent
from planner.plans import Plan
from planner.search import SOLVERS
from planner.sharding.named import SCHEMES
from planner.sharding.spec import Spec, axes_of, show, ways


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


def spec_from(given: Any, rank: int, name: str) -> Spec:
    """A spec from a PartitionSpec or a tuple of axes per dim; dims left out at the end are whole."""
    if not isinstance(given, Iterable) or isinstance(given, str) or not all(_is_dim(dim) for dim in given):
        raise PinError(
            f"The pin {name!r} is {given!r}; give a PartitionSpec of axis names, such as P('x', None)."
        )
    dims = tuple((axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in given)
    if len(dims) > rank:
        raise PinError(
            f"The pin {name!r} gives {len(dims)} dims, but the value has {rank}. Give at most {rank} entries."
        )
    spec = dims + ((),) * (rank - len(dims))
    used = axes_of(spec)
    if len(set(used)) < len(used):
        raise PinError(f"The pin {name!r} = {show(spec)} uses an axis twice. Give each axis to one dim.")
    return spec


def _is_dim(given: Any) -> bool:
    """Whether this is one entry of a PartitionSpec: nothing, an axis, or several."""
    several = isinstance(given, (tuple, list)) and all(isinstance(axis, str) for axis in given)
    return given is None or isinstance(given, str) or several


def pinned_nodes(graph: Graph, coarse: Coarse, pins: Mapping[str, Any]) -> dict[int, Spec]:
    """Node id -> spec of every argument that a pin names; where several do, the last one holds.

    Raises PinError for a pin that names none, or that splits a single element.
    """
    if not isinstance(pins, Mapping):
        raise PinError(
            f"pins is {pins!r}; give a dict of paths and PartitionSpecs, like {{'batch.*': P('x')}}."
        )
    pinned: dict[int, Spec] = {}
    for pattern, given in pins.items():
        matches = [leaf for leaf in graph.arguments if fnmatch.fnmatchcase(leaf.path, pattern)]
        if not matches:
            raise PinError(
                f"The pin {pattern!r} matches no argument. Paths look like {_examples(graph)}; "
                "* stands for any text."
            )
        for leaf in matches:
            spec = spec_from(given, len(graph.values[leaf.value].shape), pattern)
            if leaf.value in coarse.home:
                pinned[coarse.home[leaf.value][0]] = spec
            elif axes_of(spec):
                raise PinError(
                    f"The pin {pattern!r} = {show(spec)} splits {leaf.path}, which is a single element. "
                    "Leave it out of the pin."
                )
    return pinned


def _examples(graph: Graph) -> str:
    paths = [repr(leaf.path) for leaf in graph.arguments]
    return " or ".join((paths[0], paths[-1])) if paths else "nothing: the step has no arguments"


def usable_meshes(
    meshes: Sequence[LogicalMesh], graph: Graph, coarse: Coarse, pins: Mapping[int, Spec]
) -> tuple[LogicalMesh, ...]:
    """The meshes on which all pins can hold.

    Raises PinError if there is none, saying why not on the mesh with the most axes.
    """
    problems = {mesh: _pin_problem(mesh, graph, coarse, pins) for mesh in meshes}
    usable = tuple(mesh for mesh, problem in problems.items() if not problem)
    if usable:
        return usable
    raise PinError(problems[max(problems, key=lambda mesh: len(mesh.axes))])


def _pin_problem(mesh: LogicalMesh, graph: Graph, coarse: Coarse, pins: Mapping[int, Spec]) -> str:
    """Why a pin cannot hold on a mesh, '' if all can."""
    names = {leaf.value: leaf.path for leaf in graph.arguments}
    for node, spec in pins.items():
        value = coarse.nodes[node].outputs[0].value
        path, shape = names[value], graph.values[value].shape
        unknown = [axis for axis in axes_of(spec) if axis not in mesh.sizes]
        if unknown:
            return (
                f"The pin on {path} names the axis {unknown[0]!r}, but the mesh has {', '.join(mesh.axes)}. "
                f"Use these names, or fix the mesh (mesh=)."
            )
        for dim, (extent, axes) in enumerate(zip(shape, spec, strict=True)):
            count = ways(axes, mesh.sizes)
            if extent % count:
                return (
                    f"The pin {show(spec)} does not divide {path}: dim {dim} has {extent} elements, which "
                    f"{count} pieces cannot share evenly. "
                    f"Pin another dim, or choose a size that {count} divides."
                )
    return ""
