"""What a timeline shows: every stage by name, where compute waits, and the memory in use meanwhile."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph
from planner.simulate.durations import PICO, Stage, Stages
from planner.simulate.engine import Run
from planner.simulate.tasks import Segment

COMPUTE = "compute"
_SHOWN = 4  # iterations of a loop that are shown one by one

Interval = tuple[float, float]  # begin, seconds


@dataclasses.dataclass(frozen=True)
class Span:
    """One thing on some streams, from `start` for `seconds`. what: the kind of a collective, else the
    primitive, or how many ops are fused. value, source: what is made or moved, by name, and the user's line.
    position: in the program, where it is work."""

    streams: tuple[str, ...]
    start: float
    seconds: float
    what: str
    value: str
    source: str
    position: int = -1


@dataclasses.dataclass(frozen=True)
class Ran:
    """A run of a segment, with the stages it was made of, and those of the loops inside, by item."""

    segment: Segment
    stages: Sequence[Stages]
    run: Run
    inside: Mapping[int, "Ran"]


class Naming:
    """The names of stages. wires: of the streams."""

    def __init__(self, graph: Graph, coarse: Coarse, wires: Sequence[str]) -> None:
        self.graph, self.coarse, self.wires = graph, coarse, wires
        self.ops = {op.id: op for op in graph.ops}
        self.source = {value: op.source for op in graph.ops for value in op.results}

    def moved(self, link: int, start: float, seconds: float, stage: Stage) -> Span:
        """Of a collective that brings the value of a link."""
        user = self.coarse.links[link]
        return self._collective(start, seconds, stage, self.coarse.nodes[user.user].inputs[user.into].value)

    def _collective(self, start: float, seconds: float, stage: Stage, value: int) -> Span:
        assert stage.what is not None, "a collective"
        streams, what = tuple(self.wires[wire] for wire in stage.wires), stage.what
        name, source = self.graph.values[value].name, self.source.get(value, "")
        return Span(streams, start, seconds, f"{what.kind} over {', '.join(what.axes)}", name, source)

    def done(self, node: int, start: float, seconds: float, stage: Stage) -> Span:
        """Of the work of a node, or of a collective that finishes it."""
        found = self.coarse.nodes[node]
        if stage.what is not None and not stage.work:
            value = found.sums[0].value if found.sums else stage.what.value
            return self._collective(start, seconds, stage, value)
        name = self.graph.values[found.outputs[0].value].name if found.outputs else ""
        if not found.ops:
            return Span((COMPUTE,), start, seconds, "write", name, "", found.position)
        op, count = self.ops[found.ops[0]], len(found.ops)
        what = op.primitive if count == 1 else f"{count} fused ops"
        if stage.what is not None:
            what += f" in a loop with its {stage.what.kind} over {', '.join(stage.what.axes)}"
        streams = (self.wires[wire] for wire in stage.wires)
        return Span((COMPUTE, *streams), start, seconds, what, name, op.source, found.position)


def spans(ran: Ran, naming: Naming, offset: int = 0) -> Iterator[Span]:
    """Of a run that begins at `offset` picoseconds; of a loop the first iterations, and the rest as one."""
    nodes = ran.segment.nodes
    for begin, end, program, number in ran.run.spans:
        start, stage = offset + begin, ran.stages[program][number]
        if program in ran.inside:
            inner, shown = ran.inside[program], _shown(ran.inside[program])
            for i in range(shown):
                yield from spans(inner, naming, start + i * inner.run.ticks)
            left, begun = int(inner.segment.trips) - shown, start + shown * inner.run.ticks
            if left:
                seconds = (offset + end - begun) / PICO
                yield Span((COMPUTE,), begun / PICO, seconds, f"{left} more iterations", "", "")
        else:
            times = start / PICO, (end - begin) / PICO
            if program < len(nodes):
                yield naming.done(nodes[program], *times, stage)
            else:
                yield naming.moved(ran.segment.lanes[program - len(nodes)].link, *times, stage)


def _shown(ran: Ran) -> int:
    return min(_SHOWN, int(ran.segment.trips))


def exposed(ran: Ran, offset: int = 0) -> Iterator[tuple[int, int]]:
    """(begin, picoseconds) of the times in which compute waits or is slowed down; their sum is that of the
    run, less its work. What is not shown of a loop stands at its end, as one."""
    now = 0
    for begin, end, program, number in sorted(ran.run.spans):
        stage = ran.stages[program][number]
        if not stage.alone:
            continue
        if begin > now:
            yield offset + now, begin - now
        now = end
        if program in ran.inside:
            inner, shown = ran.inside[program], _shown(ran.inside[program])
            for i in range(shown):
                yield from exposed(inner, offset + begin + i * inner.run.ticks)
            left = (end - begin - stage.work) - shown * (inner.run.ticks - inner.run.work)
            if left > 0:
                yield offset + end - left, left
        elif end - begin > stage.work:
            yield offset + begin + stage.work, end - begin - stage.work
    if ran.run.ticks > now:
        yield offset + now, ran.run.ticks - now


def busy(ran: Ran, wires: Sequence[str], times: float = 1.0) -> Iterator[tuple[str, float]]:
    """(stream, seconds) of every stage, of all iterations. times: runs of the segment in a step."""
    for begin, end, program, number in ran.run.spans:
        stage, seconds = ran.stages[program][number], times * (end - begin) / PICO
        if program in ran.inside:
            yield from busy(ran.inside[program], wires, times * ran.inside[program].segment.trips)
            continue
        if stage.work:
            yield COMPUTE, seconds
        yield from ((wires[wire], seconds) for wire in stage.wires)
