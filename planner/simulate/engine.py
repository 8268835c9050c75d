"""The engine: one run of a segment, event by event.

    streams     compute, and one per wire
    compute     takes, of what can run, what comes first in the order of the segment
    wires       are taken in the order in which collectives come to be ready; one that needs several waits for
                all of them
    a stage     that is `alone` holds compute; a collective that is not runs beside it
    slowdown    work that runs beside a collective loses a part s of each second of it:
                    ticks' = min(ticks / (1 - s), ticks + s * what is left of the collective)

What happens at one time comes in the order of priorities: that of an item is its number, that of a lane the
number of its reader. So a run is a function of the stages alone.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Sequence

from planner.simulate.durations import Stage, Stages
from planner.simulate.tasks import END, Segment

Span = tuple[int, int, int, int]  # begin, end, program, stage
Watch = Callable[["State", int], bool]  # at the end of an item's work, before what follows; whether to stop


class State:
    """Where a run stands. Programs are the items, then the lanes.

    now: picoseconds. busy: when compute is free again, -1 if it is; running: its program. free, slows: of
    each wire. events: (time, key) of the collectives that end. ready: keys of what waits for compute. stage:
    of each program, the one it is at. waits: what each lane with moves waits for. needs: what each item waits
    for.
    """

    def __init__(self, wires: int, programs: int, waits: Iterable[int], needs: Iterable[int]) -> None:
        self.now, self.busy, self.running = 0, -1, -1
        self.free, self.slows = [0] * wires, [0.0] * wires
        self.events: list[tuple[int, int]] = []
        self.ready: list[int] = []
        self.stage, self.waits, self.needs = bytearray(programs), bytearray(waits), list(needs)

    def copy(self, later: int = 0) -> "State":
        """The same state, so much later."""
        new = State.__new__(State)
        new.now, new.busy, new.running = self.now + later, self.busy, self.running
        new.free, new.slows = [time + later for time in self.free], self.slows[:]
        new.events = [(time + later, key) for time, key in self.events]
        new.ready = self.ready[:]
        new.stage, new.waits, new.needs = self.stage[:], self.waits[:], self.needs[:]
        return new

    def goes_on_like(self, other: "State") -> bool:
        """Whether all that follows is the same, but for the time of day."""
        return (
            self.running == other.running
            and self.stage == other.stage
            and self.waits == other.waits
            and self.needs == other.needs
            and sorted(self.ready) == sorted(other.ready)
            and self._ahead() == other._ahead()
        )

    def _ahead(self) -> tuple:
        taken = [
            (t - self.now, s) if t > self.now else (0, 0.0)
            for t, s in zip(self.free, self.slows, strict=True)
        ]
        return taken, sorted((time - self.now, key) for time, key in self.events)


class Log:
    """When everything happened in a run, counted in `now`, which whoever watches the run moves on: when each
    item began, let lanes open, and each program ended."""

    def __init__(self, items: int, programs: int) -> None:
        never = 1 << 60
        self.now = 0
        self.began, self.opened, self.ended = [never] * items, [never] * items, [never] * programs


@dataclasses.dataclass(frozen=True)
class Run:
    """ticks: picoseconds of one run of a segment; work: those in which compute had something to do, without
    its slowdown. spans: of every stage."""

    ticks: int
    work: int
    spans: tuple[Span, ...]


class Engine:
    """Runs one segment."""

    def __init__(self, segment: Segment, wires: int) -> None:
        self.segment, self.wires = segment, wires
        self.count = len(segment.nodes)
        self.programs = self.count + len(segment.lanes)
        self.radix = self.programs + 1
        of_lanes = (self.count if lane.reader == END else lane.reader for lane in segment.lanes)
        self.keys = [p * self.radix + i for i, p in enumerate([*range(self.count), *of_lanes])]
        self.readers = [lane.reader for lane in segment.lanes]

    def run(self, stages: Sequence[Stages]) -> Run:
        """One run from beginning to end. stages: of the items, then the lanes."""
        spans: list[Span] = []
        state = self.start(stages, spans=spans)
        self.go(state, stages, spans=spans)
        return Run(state.now, self.work(stages), tuple(spans))

    def work(self, stages: Sequence[Stages]) -> int:
        """Picoseconds of compute."""
        return sum(stage.work for steps in stages[: self.count] if steps for stage in steps)

    def start(
        self, stages: Sequence[Stages], spans: list[Span] | None = None, log: Log | None = None
    ) -> State:
        """The state in which a run begins."""
        segment = self.segment
        state = State(self.wires, self.programs, segment.waits, segment.needs)
        first = [self.count + i for i in segment.unmade if stages[self.count + i]]
        for program in first:
            reader = self.readers[program - self.count]
            if reader != END:
                state.needs[reader] += 1
        begin = [program for program in first if not segment.waits[program - self.count]]
        begin += [item for item, count in enumerate(state.needs) if not count]
        self._begin(state, stages, spans, log, begin)
        return state

    def go(
        self,
        state: State,
        stages: Sequence[Stages],
        *,
        spans: list[Span] | None = None,
        log: Log | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Lets a run go on from a state to its end, or until whoever watches it stops it."""
        events, ready, count, radix = state.events, state.ready, self.count, self.radix
        while True:
            if state.busy < 0 and ready and not (events and events[0][0] <= state.now):
                self._compute(state, stages, spans)
            if events and (state.busy < 0 or events[0][0] <= state.busy):
                state.now, key = heapq.heappop(events)
                program = key % radix
            elif state.busy >= 0:
                state.now, program, state.busy = state.busy, state.running, -1
                if watch and program < count and not state.stage[program] and watch(state, program):
                    return
            else:
                return
            self.follow(state, stages, program, spans, log)

    def _compute(self, state: State, stages: Sequence[Stages], spans: list[Span] | None) -> None:
        """Compute takes the first of what is ready."""
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
            length = self._slowed(state, stage)
        state.busy, state.running = start + length, program
        if spans is not None:
            spans.append((start, state.busy, program, number))

    def _slowed(self, state: State, stage: Stage) -> int:
        """Ticks of some work beside the collectives that run now."""
        length = stage.ticks
        for part, until in zip(state.slows, state.free, strict=True):
            if part and until > state.now:
                beside = stage.ticks + int(part * (until - state.now))
                length = max(length, min(int(stage.ticks / (1 - part)), beside))
        return length

    def follow(
        self,
        state: State,
        stages: Sequence[Stages],
        program: int,
        spans: list[Span] | None = None,
        log: Log | None = None,
    ) -> None:
        """What follows the end of a stage."""
        number = state.stage[program] = state.stage[program] + 1
        found: list[int] = []
        if number == 1 and program < self.count:
            self._open(state, stages, program, found, log)
        if number < len(stages[program]):
            found.append(program)
        else:
            self._done(state, stages, program, found, log)
        if found:
            self._begin(state, stages, spans, log, found)

    def _open(
        self, state: State, stages: Sequence[Stages], gate: int, found: list[int], log: Log | None
    ) -> None:
        """The work of an item lets the items and lanes open that it is the gate of."""
        if log is not None:
            log.opened[gate] = log.now
        needs, waits, count = state.needs, state.waits, self.count
        for item, lanes in self.segment.opens[gate]:
            needs[item] -= 1
            if not needs[item]:
                found.append(item)
            for lane in lanes:
                if stages[count + lane]:
                    waits[lane] -= 1
                    if not waits[lane]:
                        found.append(count + lane)

    def _done(
        self, state: State, stages: Sequence[Stages], program: int, found: list[int], log: Log | None
    ) -> None:
        """An item is done, or what a lane brings has arrived."""
        if log is not None:
            log.ended[program] = log.now
        needs, waits, count = state.needs, state.waits, self.count
        if program >= count:
            arrived: Iterable[int] = (self.readers[program - count],)
        else:
            arrived = []
            for lane, reader in self.segment.after[program]:
                if not stages[count + lane]:
                    arrived.append(reader)
                else:
                    waits[lane] -= 1
                    if not waits[lane]:
                        found.append(count + lane)
        for reader in arrived:
            if reader != END:
                needs[reader] -= 1
                if not needs[reader]:
                    found.append(reader)

    def _begin(
        self,
        state: State,
        stages: Sequence[Stages],
        spans: list[Span] | None,
        log: Log | None,
        programs: list[int],
    ) -> None:
        """Begins programs at their present stage; those without stages are done at once."""
        beside = []
        while programs:
            program = programs.pop()
            steps, number = stages[program], state.stage[program]
            if log is not None and program < self.count and not number:
                log.began[program] = log.now
            if number < len(steps):
                if steps[number].alone:
                    heapq.heappush(state.ready, self.keys[program])
                else:
                    beside.append(self.keys[program])
                continue
            if program < self.count:
                self._open(state, stages, program, programs, log)
            self._done(state, stages, program, programs, log)
        for key in sorted(beside):
            self._send(state, stages, spans, key)

    def _send(self, state: State, stages: Sequence[Stages], spans: list[Span] | None, key: int) -> None:
        """A collective takes its wires, beside the compute."""
        program = key % self.radix
        number, start, free = state.stage[program], state.now, state.free
        stage = stages[program][number]
        for wire in stage.wires:
            start = max(start, free[wire])
        for wire in stage.wires:
            free[wire] = start + stage.ticks
            state.slows[wire] = stage.slows
        heapq.heappush(state.events, (start + stage.ticks, key))
        if spans is not None:
            spans.append((start, start + stage.ticks, program, number))
