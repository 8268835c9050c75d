"""The engine: one run of a segment, event by event.

    streams     compute, and one per wire
    compute     takes, of what can run, what comes first in the order of the segment
    wires       are taken in the order in which collectives come to be ready; one that needs several waits for
                all of them
    a stage     that is `alone` holds compute; a collective that is not runs beside it
    slowdown    work that runs beside a collective loses a part s of each second of it:
                    ticks' = min(ticks / (1 - s), ticks + s * what is left of the collective)

Everything that a run depends on comes in the order (time, priority): the priority of an item is its number,
that of a lane the number of its reader. So runs are the same whatever the order of dicts, and each is a
function of the stages alone.
"""

import dataclasses
import heapq
from collections.abc import Sequence

from planner.simulate.durations import Stages
from planner.simulate.tasks import END, Segment

Span = tuple[int, int, int, int]  # begin, end, program, stage


@dataclasses.dataclass(frozen=True)
class Run:
    """ticks: picoseconds of one run of a segment; work: those in which compute had something to do, without
    its slowdown. spans: of every stage; programs are the items, then the lanes."""

    ticks: int
    work: int
    spans: tuple[Span, ...]


class State:
    """Where a run stands. Programs are items, then lanes: `stage[p]` is the stage that p is at."""

    def __init__(self, segment: Segment, wires: int) -> None:
        self.now, self.busy, self.running = 0, -1, -1  # busy: when compute is free again, -1 if it is
        self.free = [0] * wires
        self.slows = [0.0] * wires
        self.events: list[tuple[int, int]] = []  # (time, key) of collectives that end
        self.ready: list[int] = []  # keys of what waits for compute
        self.stage = [0] * (len(segment.nodes) + len(segment.lanes))
        self.waits, self.needs = list(segment.waits), list(segment.needs)


class Engine:
    """Runs one segment. items, lanes: their stages; a loop inside is one stage of its item."""

    def __init__(self, segment: Segment, wires: int) -> None:
        self.segment, self.wires = segment, wires
        self.count = len(segment.nodes)
        self.radix = self.count + len(segment.lanes) + 1
        last = self.count
        priorities = [*range(self.count), *(last if n.reader == END else n.reader for n in segment.lanes)]
        self.keys = [priority * self.radix + p for p, priority in enumerate(priorities)]
        self.readers = [lane.reader for lane in segment.lanes]

    def run(self, stages: Sequence[Stages]) -> Run:
        """One run from beginning to end. stages: of the items, then the lanes."""
        state = State(self.segment, self.wires)
        spans: list[Span] = []
        self._begin(state, stages, spans, [self.count + i for i, w in enumerate(state.waits) if not w])
        work = 0
        while True:
            at_once = state.events and state.events[0][0] <= state.now
            if state.busy < 0 and state.ready and not at_once:
                work += self._compute(state, stages, spans)
            if state.events and (state.busy < 0 or state.events[0][0] <= state.busy):
                state.now, key = heapq.heappop(state.events)
                program = key % self.radix
            elif state.busy >= 0:
                state.now, program, state.busy = state.busy, state.running, -1
            else:
                break
            self._advance(state, stages, spans, program)
        return Run(max(state.now, *state.free, 0), work, tuple(spans))

    def _compute(self, state: State, stages: Sequence[Stages], spans: list[Span]) -> int:
        """Compute takes the first of what is ready; its work."""
        program = heapq.heappop(state.ready) % self.radix
        number = state.stage[program]
        stage, start, free = stages[program][number], state.now, state.free
        length = stage.ticks
        if stage.wires:
            for wire in stage.wires:
                start = max(start, free[wire])
            for wire in stage.wires:
                free[wire] = start + length
        else:
            for wire, until in enumerate(free):
                part = state.slows[wire]
                if part and until > start:
                    length = max(
                        length, min(int(stage.ticks / (1 - part)), stage.ticks + int(part * (until - start)))
                    )
        state.busy, state.running = start + length, program
        spans.append((start, state.busy, program, number))
        return stage.work

    def _advance(self, state: State, stages: Sequence[Stages], spans: list[Span], program: int) -> None:
        """What follows the end of a stage."""
        state.stage[program] += 1
        first = state.stage[program] == 1 and program < self.count
        opened = self._released(state, self.segment.opens[program]) if first else []
        if state.stage[program] < len(stages[program]):
            opened.append(program)
        else:
            opened += self._done(state, program)
        self._begin(state, stages, spans, opened)

    def _done(self, state: State, program: int) -> list[int]:
        """What the end of an item or a lane was the last to wait for."""
        if program < self.count:
            return self._released(state, self.segment.after[program])
        reader = self.readers[program - self.count]
        if reader != END:
            state.needs[reader] -= 1
            if not state.needs[reader]:
                return [reader]
        return []

    def _released(self, state: State, lanes: Sequence[int]) -> list[int]:
        found, waits = [], state.waits
        for lane in lanes:
            waits[lane] -= 1
            if not waits[lane]:
                found.append(self.count + lane)
        return found

    def _begin(self, state: State, stages: Sequence[Stages], spans: list[Span], programs: list[int]) -> None:
        """Begins programs at their present stage; those without stages are done at once."""
        beside = []
        while programs:
            program = programs.pop()
            steps, number = stages[program], state.stage[program]
            if number < len(steps):
                if steps[number].alone:
                    heapq.heappush(state.ready, self.keys[program])
                else:
                    beside.append(self.keys[program])
                continue
            if program < self.count:
                programs += self._released(state, self.segment.opens[program])
            programs += self._done(state, program)
        for key in sorted(beside):
            program = key % self.radix
            number, start = state.stage[program], state.now
            stage = stages[program][number]
            for wire in stage.wires:
                start = max(start, state.free[wire])
            for wire in stage.wires:
                state.free[wire] = start + stage.ticks
                state.slows[wire] = stage.slows
            heapq.heappush(state.events, (start + stage.ticks, key))
            spans.append((start, start + stage.ticks, program, number))
