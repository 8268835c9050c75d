"""Candidates: what the search found on each mesh, which of them is the plan, and how each named scheme
stands. The search goes by prices that add up; candidates are ranked by their timelines."""

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

from meshes.mesh import LogicalMesh
from planner.cost.problem import Choice
from planner.cost.scratchpad import main_peak
from planner.cost.tables import Tables
from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph
from planner.planning import Decided, peak_bytes, wire_bytes
from planner.plans import SchemeRow
from planner.sharding.named import SCHEMES
from planner.simulate.durations import PICO
from planner.simulate.timeline import Simulators

_SURE = 1.05  # a scheme's price that may be further above its best is not shown


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of a step by its timeline, and of the compute in it."""

    step_seconds: float
    compute_seconds: float


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A choice on one mesh. scheme: '' for the free search. timing: None before `timed`."""

    scheme: str
    mesh: LogicalMesh
    tables: Tables
    choice: Choice
    timing: Timing | None = None

    @property
    def seconds(self) -> float:
        """Of a step by its timeline, or, until that is known, by the prices that add up."""
        return self.timing.step_seconds if self.timing else self.choice.cost

    @functools.cached_property
    def fits(self) -> bool:
        """Whether it stays within the memory limit at every time."""
        problem, chosen = self.tables.problem, self.choice.choice
        if not math.isfinite(self.choice.cost):
            return False
        if self.choice.peak <= problem.usage_limit:
            return True
        on_chip = self.tables.network.machine.scratchpad_bytes
        return main_peak(problem, chosen, on_chip) <= problem.usage_limit


def best_of(candidates: Sequence[Candidate]) -> Candidate:
    """The fastest that fits, or else the leanest."""
    return min(candidates, key=lambda c: (not c.fits, c.seconds if c.fits else c.choice.peak))


def timed(simulators: Simulators, candidate: Candidate) -> Candidate:
    """A candidate with its timing, if it is allowed."""
    if candidate.timing is not None or not math.isfinite(candidate.choice.cost):
        return candidate
    run = simulators.of(candidate.tables).run(candidate.choice.choice).run
    return dataclasses.replace(candidate, timing=Timing(run.ticks / PICO, run.work / PICO))


def scheme_rows(
    graph: Graph,
    coarse: Coarse,
    candidates: Sequence[Candidate],
    best: Candidate,
    tried: Sequence[LogicalMesh],
    untried: Sequence[LogicalMesh],
    skipped: Collection[str],
    wanted: Sequence[str],
) -> tuple[SchemeRow, ...]:
    """The chosen plan, then each scheme at its best mesh, or why it has none. skipped: schemes that there was
    no time for on some mesh. wanted: schemes, () for all."""
    rows = [_row("chosen", graph, coarse, best)]
    for name in SCHEMES:
        if wanted and name not in wanted:
            continue
        priced = [c for c in candidates if c.scheme == name and math.isfinite(c.choice.cost)]
        sure = [c for c in priced if c.choice.cost <= _SURE * c.choice.lower_bound]
        if sure:
            rows.append(_row(name, graph, coarse, min(sure, key=lambda c: (not c.fits, c.seconds))))
        else:
            late = priced or name in skipped
            rows.append(_absent(name, "no time to price it" if late else _why(name, tried, untried)))
    return tuple(rows)


def _why(name: str, tried: Sequence[LogicalMesh], untried: Sequence[LogicalMesh]) -> str:
    """Why a scheme has no price on any of the meshes that were tried."""

    def at_home(mesh: LogicalMesh) -> bool:
        return SCHEMES[name].roles(len(mesh.axes)) is not None

    if any(at_home(mesh) for mesh in tried):
        return "does not divide evenly"
    return "no time for its meshes" if any(at_home(mesh) for mesh in untried) else "needs other mesh axes"


def _absent(name: str, reason: str) -> SchemeRow:
    inf = math.inf
    return SchemeRow(name, {}, inf, inf, inf, inf, inf, fits=False, applies=reason)


def _row(name: str, graph: Graph, coarse: Coarse, candidate: Candidate) -> SchemeRow:
    decided = Decided(graph, coarse, candidate.tables, candidate.choice.choice)
    candidate = timed(Simulators(graph, coarse), candidate)
    timing = candidate.timing or Timing(math.inf, math.inf)
    return SchemeRow(
        scheme=name,
        mesh=dict(candidate.mesh.sizes),
        step_seconds=timing.step_seconds,
        compute_seconds=timing.compute_seconds,
        exposed_seconds=max(0.0, timing.step_seconds - timing.compute_seconds),
        peak_bytes=peak_bytes(decided),
        wire_bytes=wire_bytes(decided),
        fits=candidate.fits,
    )
