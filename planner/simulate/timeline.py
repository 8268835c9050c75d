"""The timeline of one step: what runs when, on which stream, and what of the communication nothing hides.

    simulate(decided) -> Timeline
    step = compute + exposed        exposed: the time in which compute waits, or is slowed down

The body of a loop is a run of its own; as nothing runs on from one iteration into the next, all are alike
from the first on.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from planner.cost.scratchpad import in_main_memory, over_time
from planner.cost.tables import Tables
from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph
from planner.simulate.durations import PICO, Durations, Stage
from planner.simulate.engine import Engine
from planner.simulate.lookup import Lookup
from planner.simulate.policy import Policy, policy_of
from planner.simulate.spans import COMPUTE, Interval, Naming, Ran, Span, busy, exposed, spans
from planner.simulate.tasks import Segment, segments


class Chosen(Protocol):
    """A choice, and what it is one of."""

    @property
    def graph(self) -> Graph: ...

    @property
    def coarse(self) -> Coarse: ...

    @property
    def tables(self) -> Tables: ...

    @property
    def choice(self) -> Sequence[int]: ...


@dataclasses.dataclass(frozen=True)
class Timeline:
    """step_seconds = compute_seconds + exposed_seconds. busy: seconds of each stream in a step, compute
    first. spans: by start; of a loop, the first iterations, and the rest as one. exposed: the intervals in
    which compute waits for communication or is slowed down by it. memory: (seconds, bytes in use) over the
    step."""

    step_seconds: float
    compute_seconds: float
    exposed_seconds: float
    busy: Mapping[str, float]
    spans: tuple[Span, ...]
    exposed: tuple[Interval, ...]
    memory: tuple[tuple[float, float], ...]


class Simulator:
    """Simulates choices of one problem: what does not depend on the choice is found once. root: the step as
    segments, if it is known."""

    def __init__(
        self,
        graph: Graph,
        coarse: Coarse,
        tables: Tables,
        policy: Policy | None = None,
        root: Segment | None = None,
    ) -> None:
        self.policy = policy or policy_of(tables.network.machine)
        self.durations = Durations(graph, coarse, tables, self.policy)
        self.root = root or segments(graph, coarse, self.policy.ahead)
        self.engines = {id(s): Engine(s, len(self.durations.wires)) for s in every(self.root)}
        self.lookups = {id(s): Lookup(s, self.durations) for s in every(self.root)}

    def run(self, choice: Sequence[int], segment: Segment | None = None) -> Ran:
        """One run of a segment, or of the step."""
        segment = segment or self.root
        inside = {item: self.run(choice, loop) for item, loop in segment.loops.items()}
        stages = self.lookups[id(segment)].all(choice, {item: self.loop(ran) for item, ran in inside.items()})
        return Ran(segment, stages, self.engines[id(segment)].run(stages), inside)

    def loop(self, ran: Ran) -> Stage:
        """All iterations of a loop as one stage."""
        return self.iterations(ran.segment, ran.run.ticks, ran.run.work)

    def iterations(self, loop: Segment, ticks: int, work: int) -> Stage:
        """All iterations as one stage, beside which no collective runs. ticks, work: of one."""
        everything = tuple(range(len(self.durations.wires)))
        return Stage(round(ticks * loop.trips), everything, work=round(work * loop.trips))

    def seconds(self, choice: Sequence[int]) -> float:
        """Of a step."""
        return self.run(choice).run.ticks / PICO


class Simulators:
    """The simulators of one step on several meshes of a machine, each made once."""

    def __init__(self, graph: Graph, coarse: Coarse) -> None:
        self.graph, self.coarse = graph, coarse
        self.known: dict[int, Simulator] = {}

    def of(self, tables: Tables) -> Simulator:
        """The simulator of one problem."""
        if id(tables) not in self.known:
            root = next((one.root for one in self.known.values()), None)
            self.known[id(tables)] = Simulator(self.graph, self.coarse, tables, root=root)
        return self.known[id(tables)]


def every(segment: Segment) -> Iterator[Segment]:
    """A segment and all those inside."""
    yield segment
    for loop in segment.loops.values():
        yield from every(loop)


def simulate(decided: Chosen, policy: Policy | None = None) -> Timeline:
    """The timeline of a choice. policy: what runs beside compute, by default what the machine's compiler
    does."""
    return timeline(decided, Simulator(decided.graph, decided.coarse, decided.tables, policy))


def timeline(decided: Chosen, simulator: Simulator) -> Timeline:
    """The same by a simulator that is known. simulator: of the choice's tables."""
    ran = simulator.run(decided.choice)
    wires = simulator.durations.wires
    found = spans(ran, Naming(decided.graph, decided.coarse, wires))
    shown = tuple(sorted(found, key=lambda span: (span.start, span.streams)))
    used: dict[str, float] = defaultdict(float, {COMPUTE: 0.0})
    for stream, seconds in busy(ran, wires):
        used[stream] += seconds
    problem, scratchpad = decided.tables.problem, decided.tables.network.machine.scratchpad_bytes
    held = over_time(in_main_memory(problem, decided.choice, scratchpad), problem.horizon)
    return Timeline(
        step_seconds=ran.run.ticks / PICO,
        compute_seconds=ran.run.work / PICO,
        exposed_seconds=(ran.run.ticks - ran.run.work) / PICO,
        busy=dict(used),
        spans=shown,
        exposed=tuple((begin / PICO, length / PICO) for begin, length in sorted(exposed(ran))),
        memory=tuple((span.start, float(held[span.position])) for span in shown if span.position >= 0),
    )
