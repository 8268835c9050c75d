"""Search: every candidate mesh, every named scheme on it, and the best choice of all.

    for each mesh:  tables -> each scheme at its best -> the free optimum, started from the schemes' choices

The result is the cheapest choice that fits the memory. A named scheme that beats the free search (which can
only happen when the search was cut short) is returned itself, so a plan is never worse than what one would
have written by hand.
"""

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from meshes.machine import Machine
from meshes.mesh import LogicalMesh
from planner.candidates import Candidate, best_of, scheme_rows, timed
from planner.cost.problem import Choice, Problem, least_peak
from planner.cost.restrict import restrict, widen
from planner.cost.tables import Pins, Tables, build
from planner.cost.traffic import Network
from planner.errors import InputError
from planner.graph.coarsen import Coarse, Node
from planner.graph.graph import Graph
from planner.plans import SchemeRow
from planner.refine import refined
from planner.report.units import duration
from planner.sharding import named
from planner.sharding.pin import holds
from planner.sharding.strategy import result_spec
from planner.simulate.timeline import Simulator, Simulators
from planner.solvers import auto, elimination, ilp
from planner.solvers.minplus import INTERRUPTED

SOLVERS = {"auto": auto.solve, "elimination": elimination.solve, "ilp": ilp.solve}
_INTERRUPTED = "The search was interrupted; this is the best of what it had tried."
_EFFORT = {1: 1.0, 2: 1.5, 3: 12.0}  # of a mesh by its number of axes, about: measured on deep and wide steps
# Of a mesh's time, to make a named scheme fit: most of those that do not fit at once never will.
_LIMITED_SHARE = 0.1
_LEAST = 0.2, 4e-4  # seconds of any solving, and, for each node, of the first ones
_FREE = 2.0  # times as long as a named scheme, about, the whole space takes
_REFINING = 0.2  # of the time of the search, beyond it: for the best plan, by its timeline

Progress = Callable[[str, float], None]  # what is being done, and which part of the whole is done


@dataclasses.dataclass(frozen=True)
class Request:
    """What to search. limit: bytes per device. schemes: stay inside these, () for the whole space. pins: node
    id -> what is held of it. every_scheme: price each scheme on each mesh, not only where it is at home.
    start: on the mesh of sizes `start_mesh`, what to hold at first, and let go of again."""

    limit: float
    schemes: tuple[str, ...] = ()
    pins: Pins = dataclasses.field(default_factory=dict)
    solver: str = "auto"
    seconds: float = 10.0
    seed: int = 0
    every_scheme: bool = False
    start: Pins = dataclasses.field(default_factory=dict)
    start_mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Found:
    """The result. best: the cheapest that fits, or else the one that needs the least memory. lower_bound: no
    choice on any of the meshes tried is cheaper. seconds: of the stages cost and solve. simulator: of the
    best one's tables, if it is known."""

    best: Candidate
    rows: tuple[SchemeRow, ...]
    lower_bound: float
    seconds: Mapping[str, float]
    sorts: Mapping[int, named.Sort]
    notes: tuple[str, ...] = ()
    simulator: Simulator | None = None


def search(
    graph: Graph,
    coarse: Coarse,
    machine: Machine,
    meshes: Sequence[LogicalMesh],
    request: Request,
    progress: Progress,
) -> Found:
    """The best choice over the meshes. A mesh that there is no time for is left out, and a note says so."""
    sorts = named.sorts(coarse.nodes, _users(coarse))
    clock = _Clock(time.monotonic() + request.seconds)
    candidates: list[Candidate] = []
    notes: list[str] = []
    untried: list[LogicalMesh] = []
    first, again = _by_shape(meshes)
    for i, mesh in enumerate((*first, *again)):
        if i >= len(first) and candidates and not _same_shape(mesh, best_of(candidates).mesh):
            continue  # only the order of the axes differs from a mesh that lost
        if candidates and clock.expected(mesh) > clock.left():
            untried.append(mesh)
            continue
        progress(f"mesh {mesh}", i / len(meshes))
        share = clock.left() / min(2, max(1, len(first) - i))  # the first are the likeliest
        try:
            found = _on_mesh(graph, coarse, Network(machine, mesh), sorts, request, share, clock)
        except KeyboardInterrupt:
            if not candidates:
                raise
            notes.append(_INTERRUPTED)
            break
        candidates += found
        if found and found[-1].choice.stopped.endswith(INTERRUPTED):
            notes.append(_INTERRUPTED)
            break
    if not candidates:
        raise InputError(
            f"No scheme among {', '.join(request.schemes)} can be used on the mesh "
            f"{' or '.join(str(mesh) for mesh in meshes)}. Leave the schemes open, or fix a mesh with other "
            "axes."
        )
    if untried:
        names = ", ".join(str(mesh) for mesh in untried)
        notes.append(
            f"There was no time for the meshes {names} in {duration(request.seconds)}; allow more with "
            "seconds=."
        )
    started, simulators = time.monotonic(), Simulators(graph, coarse)
    candidates = [timed(simulators, candidate) for candidate in candidates]
    best = best_of(candidates)
    if not request.schemes and _INTERRUPTED not in notes:
        refining = _REFINING * request.seconds
        best = refined(simulators, best, refining + min(0.0, clock.left()), request.seed)
    clock.spent["solve"] += time.monotonic() - started
    tried = [mesh for mesh in meshes if mesh not in untried]
    rows = scheme_rows(graph, coarse, candidates, best, tried, untried, clock.skipped, request.schemes)
    bounds = [c.choice.lower_bound for c in candidates if not c.scheme or request.schemes]
    lower_bound = min([*bounds, best.choice.cost])
    simulator = simulators.of(best.tables)
    return Found(best, rows, lower_bound, clock.spent, sorts, tuple(notes), simulator)


def _on_mesh(
    graph: Graph,
    coarse: Coarse,
    network: Network,
    sorts: Mapping[int, named.Sort],
    request: Request,
    seconds: float,
    clock: "_Clock",
) -> list[Candidate]:
    """The named schemes at home on a mesh, then the free optimum (unless schemes were asked for)."""
    started = time.monotonic()
    tables = build(graph, coarse, network, request.limit, request.pins)
    built = time.monotonic()
    found = _schemes(coarse, tables, network.mesh, sorts, request, seconds, clock)
    if request.start and list(network.mesh.sizes.items()) == list(request.start_mesh.items()):
        found.append(_from_start(coarse, tables, network.mesh, request, clock.part(seconds)))
    if not request.schemes and not (found and found[-1].choice.stopped.endswith(INTERRUPTED)):
        least = 0.0 if clock.taken else _LEAST[1] * len(coarse.nodes)  # a scheme alone is a poor plan
        found.append(_free(tables, network.mesh, found, request, clock.part(seconds, least)))
    done = time.monotonic()
    clock.taken[len(network.mesh.axes)] = done - started
    clock.spent["cost"] += built - started
    clock.spent["solve"] += done - built
    return found


@dataclasses.dataclass
class _Clock:
    """When the search has to end, what a mesh took (by its number of axes), the seconds of each stage, and
    the schemes that there was no time for on some mesh."""

    deadline: float
    spent: dict[str, float] = dataclasses.field(default_factory=lambda: {"cost": 0.0, "solve": 0.0})
    taken: dict[int, float] = dataclasses.field(default_factory=dict)
    skipped: set[str] = dataclasses.field(default_factory=set)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def part(self, seconds: float, least: float = 0.0) -> float:
        """So many seconds, if they are left, and in any case a few."""
        return max(_LEAST[0], least, min(seconds, self.left()))

    def expected(self, mesh: LogicalMesh) -> float:
        """Seconds for a mesh, from the last one with as many axes, or else with fewer."""
        axes = len(mesh.axes)
        fewer = max((count for count in self.taken if count <= axes), default=None)
        return self.taken[fewer] * _EFFORT[axes] / _EFFORT[fewer] if fewer else 0.0


def _same_shape(some: LogicalMesh, other: LogicalMesh) -> bool:
    return sorted(some.shape) == sorted(other.shape)


def _by_shape(meshes: Sequence[LogicalMesh]) -> tuple[list[LogicalMesh], list[LogicalMesh]]:
    """The first mesh of every set of axis sizes, and the rest: the same axes in another order."""
    first: list[LogicalMesh] = []
    again: list[LogicalMesh] = []
    for mesh in meshes:
        (again if any(_same_shape(mesh, known) for known in first) else first).append(mesh)
    return first, again


def _users(coarse: Coarse) -> dict[int, list[Node]]:
    users: dict[int, list[Node]] = defaultdict(list)
    for link in coarse.links:
        users[link.maker].append(coarse.nodes[link.user])
    return users


def _schemes(
    coarse: Coarse,
    tables: Tables,
    mesh: LogicalMesh,
    sorts: Mapping[int, named.Sort],
    request: Request,
    seconds: float,
    clock: "_Clock",
) -> list[Candidate]:
    """Every named scheme that this mesh is the home of, solved inside its restriction. The first has the time
    it needs; another one is left out where that would leave too little for the whole space."""
    found: list[Candidate] = []
    until, slowest = time.monotonic() + seconds, 0.0
    for scheme in named.SCHEMES.values():
        roles = scheme.roles(len(mesh.axes))
        if roles is None or (request.schemes and scheme.name not in request.schemes):
            continue
        if not request.every_scheme and len(set(roles)) == 1 and len(mesh.axes) > 1:
            continue  # axes that all do the same are one axis, and a mesh of one axis is tried by itself
        kept = _kept(coarse, tables, sorts, dict(zip(mesh.axes, roles, strict=True)))
        if kept is None:
            continue
        started = time.monotonic()
        if found and min(until - started, clock.left() - _FREE * slowest) < slowest:
            clock.skipped.add(scheme.name)
            continue
        least = 0.0 if found or clock.taken else _LEAST[1] * len(coarse.nodes)
        choice = _inside(restrict(tables.problem, kept), request, clock.part(seconds, least))
        slowest = max(slowest, time.monotonic() - started)
        wide = dataclasses.replace(choice, choice=widen(choice.choice, kept))
        found.append(Candidate(scheme.name, mesh, tables, wide))
        if choice.stopped.endswith(INTERRUPTED):
            break
    return found


def _from_start(
    coarse: Coarse, tables: Tables, mesh: LogicalMesh, request: Request, seconds: float
) -> Candidate:
    """The best choice with the arguments as the plan to start from has them, where they can be so."""
    shared: dict[tuple, np.ndarray] = {}
    kept = []
    for node, table in zip(coarse.nodes, tables.nodes, strict=True):
        held, every = request.start.get(node.id, ()), table.strategies
        key = (id(table), held)
        if key not in shared:
            as_before = [
                i for i, s in enumerate(every) if all(holds(h.pin, result_spec(h.dims, s)) for h in held)
            ]
            shared[key] = np.array(as_before or range(len(every)), dtype=np.int64)
        kept.append(shared[key])
    choice = _inside(restrict(tables.problem, kept), request, seconds)
    return Candidate("start", mesh, tables, dataclasses.replace(choice, choice=widen(choice.choice, kept)))


def _inside(problem: Problem, request: Request, seconds: float) -> Choice:
    """The best choice of a scheme: within the memory limit if one is found, else the fastest one without
    it."""
    solve = SOLVERS[request.solver]
    started = time.monotonic()
    free = solve(dataclasses.replace(problem, usage_limit=math.inf), seconds=seconds, seed=request.seed)
    taken = time.monotonic() - started
    if (
        free.peak <= problem.usage_limit
        or not math.isfinite(free.cost)
        or least_peak(problem) > problem.usage_limit
    ):
        return free
    left = seconds if request.schemes else _LIMITED_SHARE * seconds
    if left < taken:  # the limit takes several such solves
        return free
    begin = {"starts": [free.choice]} if request.solver == "auto" else {}  # the others begin with nothing
    lean = solve(problem, seconds=left, seed=request.seed, **begin)
    return lean if lean.peak <= problem.usage_limit or request.schemes else free


def _kept(
    coarse: Coarse, tables: Tables, sorts: Mapping[int, named.Sort], roles: Mapping[str, str]
) -> list[np.ndarray] | None:
    """The strategies each node keeps inside a scheme; None if some node has none left, or the scheme does
    nothing."""
    shared: dict[tuple, np.ndarray] = {}
    kept = []
    for node, table in zip(coarse.nodes, tables.nodes, strict=True):
        key = (id(table), sorts[node.id], node.labels)
        if key not in shared:
            shared[key] = np.array(
                named.allowed(node, sorts[node.id], table.strategies, roles), dtype=np.int64
            )
        kept.append(shared[key])
    if any(len(indices) == 0 for indices in kept) or not _works(coarse, tables, kept, roles):
        return None
    return kept


def _works(coarse: Coarse, tables: Tables, kept: list[np.ndarray], roles: Mapping[str, str]) -> bool:
    """Whether every axis splits some heavy op: otherwise the step has nothing the scheme could split."""
    busy: set[str] = set()
    for node, table, indices in zip(coarse.nodes, tables.nodes, kept, strict=True):
        if node.kind == "op" and node.flops and not busy.issuperset(roles):
            for i in indices:
                busy.update(axis for axes in table.strategies[i].split.values() for axis in axes)
    return busy.issuperset(roles)


def _free(
    tables: Tables, mesh: LogicalMesh, schemes: Sequence[Candidate], request: Request, seconds: float
) -> Candidate:
    starts = [c.choice.choice for c in schemes if math.isfinite(c.choice.cost)]
    begin = {"starts": starts} if request.solver == "auto" else {}  # the others begin with nothing
    choice = SOLVERS[request.solver](tables.problem, seconds=seconds, seed=request.seed, **begin)
    return Candidate("", mesh, tables, choice)
