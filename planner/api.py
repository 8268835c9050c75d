"""The way through the house: plan a step, run it by the plan, compare it with the named schemes.

    fn, args -trace-> Graph -coarsen-> nodes -tables-> Problem -search-> choice
                                       ShardedStep <-apply- Plan <-planning-+

Each stage is called once, in this order. `verify` compiles the planned step and holds it against the plan.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshes.devices import auto_mesh, jax_mesh, logical_of, machine_of_process
from meshes.machine import Machine, load_machine
from meshes.mesh import LogicalMesh, mesh_of, preferred_meshes
from planner import planning
from planner.apply import ShardedStep, apply
from planner.compiled import compile_step, devices_of
from planner.cost.saving import in_whole_numbers, save
from planner.describe import describe
from planner.graph.coarsen import Coarse, coarsen
from planner.graph.graph import Graph
from planner.inputs import check_batch, check_names, check_same_step, check_types
from planner.jax_compat import Traced, plain_pins, spec_tree, trace_step
from planner.pins import pinned_nodes, specs_held, usable_meshes
from planner.plans import Plan
from planner.search import Found, Progress, Request, search
from planner.simulate.timeline import Simulator, timeline
from planner.trace import build_graph
from planner.trouble import does_not_fit
from planner.verdict import Verification, verdict
from planner.whole import never_whole

Mesh = Mapping[str, int] | Any  # axis sizes, or a jax.sharding.Mesh


def plan(
    train_step: Callable[..., Any],
    *args: Any,
    machine: str | Machine | None = None,
    mesh: Mesh | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    pins: Mapping[str, Any] | None = None,
    rules: Mapping[str, str] | None = None,
    schemes: Sequence[str] | None = None,
    memory_fraction: float = 0.9,
    solver: str = "auto",
    seconds: float = 10.0,
    seed: int = 0,
    progress: Progress | None = None,
    start: Plan | None = None,
    problem_file: str | os.PathLike[str] | None = None,
) -> Plan:
    """The best sharding found for one step; nothing is run, and no device is needed.

    args: arrays or ShapeDtypeStructs, in any pytrees. machine: "tpu_v5e:4x4", or this process' devices. mesh:
    fix the logical mesh (axis sizes, or a jax Mesh) instead of searching. pins: pattern of paths, lines or
    checkpoint names -> PartitionSpec, or text that fixes a part of one (see `planner.pins`). rules: name
    of a primitive -> line that says how it splits (see `planner.opaque`). schemes: stay inside these named
    schemes. memory_fraction: of a device's memory, the part a plan may use. seconds: time limit of the
    search. start: a plan of a similar step, whose specs the search begins with. problem_file: where to save
    the problem of the final mesh, in picoseconds and bytes, for other solvers (`planner.cost.contest`).

    Raises InputError, PinError, TraceError for bad input; InfeasibleError if nothing fits the memory.
    """
    report = progress or (lambda stage, part: None)
    check_names(schemes, solver, memory_fraction)
    check_types(machine, mesh, seconds)
    target = _machine(machine)
    meshes = _meshes(target, mesh, start)
    started = time.monotonic()
    report("walking the step", 0.0)
    traced = trace_step(train_step, args, static_argnums, donate_argnums, mesh=mesh, rules=rules)
    graph = build_graph(traced)
    check_batch(graph, target, fixed=mesh is not None)
    walked = time.monotonic()
    coarse = coarsen(graph)
    request = Request(
        limit=target.memory_bytes * memory_fraction,
        schemes=tuple(schemes or ()),
        pins=pinned_nodes(graph, coarse, plain_pins(pins or {})),
        solver=solver,
        seconds=seconds,
        seed=seed,
        every_scheme=mesh is not None,
        start=specs_held(start, graph, coarse) if start else {},
        start_mesh=start.mesh if start else {},
    )
    ready = time.monotonic()
    found = search(graph, coarse, target, usable_meshes(meshes, graph, coarse, request.pins), request, report)
    if problem_file is not None:
        save(in_whole_numbers(found.best.tables.problem), problem_file)
    if not found.best.fits:
        raise does_not_fit(graph, coarse, found, target, memory_fraction, request)
    stages = {"trace": walked - started, "space": ready - walked, **found.seconds}
    return _write(traced, graph, coarse, target, found, stages)


_make_plan = plan  # by a name that an argument `plan` does not hide


def plan_and_shard(
    train_step: Callable[..., Any], *args: Any, plan: Plan | None = None, **keywords: Any
) -> ShardedStep:
    """The step, jitted to run as planned on this process' devices; a plan is made unless one is given.

    Takes the keywords of `plan`. args: example arguments, arrays or ShapeDtypeStructs. The result is called
    like the step itself; see ShardedStep for `init` and `put`.
    """
    given = plan
    if plan is None:
        plan = _make_plan(train_step, *args, **keywords)
    given_mesh, given_rules = keywords.get("mesh"), keywords.get("rules")
    positions = keywords.get("static_argnums"), keywords.get("donate_argnums")
    traced = trace_step(train_step, args, *positions, mesh=given_mesh or plan.mesh, rules=given_rules)
    if given is not None:
        check_same_step(plan, planning.fingerprint(build_graph(traced)))
    return apply(plan, traced, _device_mesh(plan, given_mesh))


def _device_mesh(plan: Plan, given: Mesh | None) -> Any:
    """The user's own jax Mesh if he gave one (its axes become Auto), else this process' devices in the plan's
    order."""
    if given is not None and not isinstance(given, Mapping):
        return auto_mesh(given.devices, given.axis_names)
    return jax_mesh(mesh_of(load_machine(plan.machine), plan.mesh))


def compare(train_step: Callable[..., Any], *args: Any, **keywords: Any) -> Plan:
    """The best plan beside the named schemes, priced by one model: `plan` by another name, read through
    `.schemes`."""
    return plan(train_step, *args, **keywords)


def verify(
    plan: Plan,
    train_step: Callable[..., Any],
    *args: Any,
    static_argnums: int | Sequence[int] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    rules: Mapping[str, str] | None = None,
) -> Verification:
    """Compiles the planned step and holds the program against the plan; nothing is run.

    It is compiled for this process' devices, or, if the plan is for a TPU that is not here, ahead of time by
    the TPU compiler (the extra `tpu`). Raises PlanFileError if the plan was made for another step, InputError
    where there is nothing to compile with.
    """
    traced = trace_step(train_step, args, static_argnums, donate_argnums, mesh=plan.mesh, rules=rules)
    graph = build_graph(traced)
    check_same_step(plan, planning.fingerprint(graph))
    machine = load_machine(plan.machine)
    devices, compiler = devices_of(machine)
    step = apply(plan, traced, jax_mesh(mesh_of(machine, plan.mesh), devices))
    return verdict(plan, compile_step(step, compiler), never_whole(graph, plan))


def _machine(given: str | Machine | None) -> Machine:
    if isinstance(given, Machine):
        return given
    return load_machine(given) if given else machine_of_process()


def _meshes(machine: Machine, fixed: Mesh | None, start: Plan | None) -> tuple[LogicalMesh, ...]:
    """The meshes to search: that of the plan to start from comes first."""
    if fixed is None:
        first = (mesh_of(machine, start.mesh),) if start else ()
        return tuple(dict.fromkeys((*first, *preferred_meshes(machine))))
    return (mesh_of(machine, fixed if isinstance(fixed, Mapping) else logical_of(fixed)),)


def _write(
    traced: Traced, graph: Graph, coarse: Coarse, machine: Machine, found: Found, stages: Mapping[str, float]
) -> Plan:
    best = found.best
    decided = planning.Decided(graph, coarse, best.tables, best.choice.choice)
    arguments, results = planning.leaf_plans(decided)
    chosen = found.rows[0]
    return Plan(
        machine=machine.name,
        mesh=dict(best.mesh.sizes),
        scheme=best.scheme or "chosen",
        words=describe(decided, found.sorts),
        step_seconds=chosen.step_seconds,
        compute_seconds=chosen.compute_seconds,
        exposed_seconds=chosen.exposed_seconds,
        peak_bytes=chosen.peak_bytes,
        limit_bytes=best.tables.problem.usage_limit,
        wire_bytes=chosen.wire_bytes,
        flops=planning.matmul_flops(decided),
        summed_seconds=best.choice.cost,
        lower_bound_seconds=found.lower_bound,
        stopped=best.choice.stopped,
        memory=planning.memory_at_peak(decided, found.sorts),
        alive=planning.alive_at_peak(decided),
        arguments=arguments,
        results=results,
        sites=planning.sites(decided),
        collectives=planning.collectives(decided),
        schemes=found.rows,
        seconds={**stages, "total": sum(stages.values())},
        unknown=graph.unknown,
        notes=(*graph.notes, *found.notes),
        fingerprint=planning.fingerprint(graph),
        versions=planning.versions(),
        in_specs=spec_tree(traced.in_tree, [leaf.spec for leaf in arguments]),
        out_specs=spec_tree(traced.out_tree, [leaf.spec for leaf in results]),
        timeline=timeline(decided, found.simulator or Simulator(graph, coarse, best.tables)),
    )
