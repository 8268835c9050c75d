"""Delta simulation: what a step takes after a few nodes change their strategies.

A run is kept with what it looked like at some *marks*, ends of the work of items. A change concerns a few
programs, those whose stages are others than before. Everything is as before until the first of them begins;
so the last mark before that is where simulation starts, with the state there *patched*: as it would be, had
the programs that have not begun always had their new stages. It stops at the first mark where the new run
goes on like the patched old one: from there the old one stands for it, so much later, until the next of the
changed programs begins, if there is one. Times are whole numbers, so nothing is lost by that:

    price(changes) = the full simulation of the changed choice, to the picosecond
"""

import dataclasses
from collections.abc import Mapping, Sequence

from planner.simulate.durations import Stages
from planner.simulate.engine import Engine, Log, State
from planner.simulate.lookup import Lookup
from planner.simulate.tasks import START, Segment
from planner.simulate.timeline import Simulator

_EVERY = 32  # items with work from one mark to the next
_BEFORE = -1  # before the first mark
Changed = Mapping[int, Stages]  # program -> its new stages


@dataclasses.dataclass(frozen=True)
class Kept:
    """A run of a segment under a choice: its end, the state at each mark, the mark of an item, and the mark
    after which everything happened. inside: of each loop."""

    segment: Segment
    engine: Engine
    lookup: Lookup
    stages: list[Stages]
    ticks: int
    work: int
    states: Sequence[State]
    marks: Mapping[int, int]
    log: Log
    inside: Mapping[int, "Kept"]


class Delta:
    """A choice whose changes are priced. ticks: picoseconds of a step."""

    def __init__(self, simulator: Simulator, choice: Sequence[int]) -> None:
        self.simulator, self.choice = simulator, list(choice)
        self.kept = keep(simulator, simulator.root, self.choice)

    @property
    def ticks(self) -> int:
        """Picoseconds of a step."""
        return self.kept.ticks

    def price(self, changes: Mapping[int, int]) -> int:
        """Picoseconds of a step after the changes, node -> strategy."""
        choice = self.choice[:]
        for v, new in changes.items():
            choice[v] = new
        return priced(self.simulator, self.kept, choice, changes)[0]

    def move(self, changes: Mapping[int, int]) -> None:
        """Makes the changes."""
        for v, new in changes.items():
            self.choice[v] = new
        self.kept = keep(self.simulator, self.simulator.root, self.choice)


def keep(simulator: Simulator, segment: Segment, choice: Sequence[int]) -> Kept:
    """Runs a segment, and keeps what is needed to price changes."""
    inside = {item: keep(simulator, loop, choice) for item, loop in segment.loops.items()}
    engine, lookup = simulator.engines[id(segment)], simulator.lookups[id(segment)]
    whole = {item: simulator.iterations(k.segment, k.ticks, k.work) for item, k in inside.items()}
    stages = lookup.all(choice, whole)
    working = [item for item in range(engine.count) if stages[item] and stages[item][0].work]
    chosen = set(working[_EVERY - 1 :: _EVERY])
    log, states, marks = Log(engine.count, engine.programs), [], {}

    def watch(state: State, item: int) -> bool:
        if item in chosen:
            marks[item] = len(states)
            states.append(state.copy())
            log.now = len(states)
        return False

    state = engine.start(stages, log=log)
    engine.go(state, stages, log=log, watch=watch)
    work = engine.work(stages)
    return Kept(segment, engine, lookup, stages, state.now, work, states, marks, log, inside)


def priced(
    simulator: Simulator, kept: Kept, choice: Sequence[int], changes: Mapping[int, int]
) -> tuple[int, int]:
    """(ticks, work) of one run of a segment under a choice that differs from the one kept in `changes`."""
    new: dict[int, Stages] = {}
    for program in kept.lookup.of(changes):
        stages = kept.lookup.one(program, choice)
        if stages != kept.stages[program]:
            new[program] = stages
    for item, loop in kept.inside.items():
        stage = simulator.iterations(loop.segment, *priced(simulator, loop, choice, changes))
        if stage != kept.stages[item][0]:
            new[item] = (stage,)
    if not new:
        return kept.ticks, kept.work
    work = kept.work
    for item in new:
        if item < kept.engine.count:
            work += sum(s.work for s in new[item]) - sum(s.work for s in kept.stages[item])
    old = {program: kept.stages[program] for program in new}
    for program, stages in new.items():
        kept.stages[program] = stages
    try:
        return _resumed(kept, old, new), work
    finally:
        for program, stages in old.items():
            kept.stages[program] = stages


def _resumed(kept: Kept, old: Changed, new: Changed) -> int:
    """The end of the run with the new stages, which stand in `kept.stages` by now."""
    engine, stages = kept.engine, kept.stages
    begins = {program: _begins(kept, program) for program in new}
    joint: list[tuple[int, int]] = []  # the mark where the runs come together, and how much later

    def watch(state: State, item: int) -> bool:
        mark = kept.marks.get(item, _BEFORE)
        if mark == _BEFORE or not all(_is_clear(kept, old, p, begins[p], mark) for p in new):
            return False
        if not _patched(kept, old, new, begins, mark).goes_on_like(state):
            return False
        joint.append((mark, state.now - kept.states[mark].now))
        return True

    mark, later = min(begins.values()) - 1, 0
    while True:
        joint.clear()
        if mark < 0:
            state = engine.start(stages)
        else:
            state = _patched(kept, old, new, begins, mark, later)
            engine.follow(state, stages, state.running)
        engine.go(state, stages, watch=watch)
        if not joint:
            return state.now
        ((mark, later),) = joint
        ahead = [begin for begin in begins.values() if begin > mark]
        if not ahead:
            return kept.ticks + later
        mark = min(ahead) - 1


def _begins(kept: Kept, program: int) -> int:
    """The first mark before which a program has begun: a lane does when it is made and its gate is passed."""
    if program < kept.engine.count:
        return kept.log.began[program]
    lane = kept.segment.lanes[program - kept.engine.count]
    made = _BEFORE if lane.maker == START else kept.log.ended[lane.maker]
    return max(made, _BEFORE if lane.gate == START else kept.log.opened[lane.gate])


def _is_clear(kept: Kept, old: Changed, program: int, begins: int, mark: int) -> bool:
    """Whether a program has not begun at a mark, or has ended."""
    if begins > mark:
        return True
    is_through = program >= kept.engine.count and not old[program]  # a lane without moves
    return is_through or kept.log.ended[program] <= mark


def _patched(
    kept: Kept, old: Changed, new: Changed, begins: Mapping[int, int], mark: int, later: int = 0
) -> State:
    """The state at a mark, where all changed programs are clear, with their new stages."""
    state, count = kept.states[mark].copy(later), kept.engine.count
    for program, stages in new.items():
        begun = begins[program] <= mark
        state.stage[program] = len(stages) if begun else 0
        if program < count:
            continue
        number = program - count
        lane = kept.segment.lanes[number]
        made = lane.maker == START or kept.log.ended[lane.maker] <= mark
        passed = lane.gate == START or kept.log.opened[lane.gate] <= mark
        waits = (lane.maker != START and not made) + (lane.gate != START and not passed)
        state.waits[number] = waits if stages else kept.segment.waits[number]
        if not begun and lane.reader >= 0:
            state.needs[lane.reader] += (bool(stages) or not made) - (bool(old[program]) or not made)
    return state
