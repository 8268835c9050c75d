"""Large problems within memory: reduce, climb, better the incumbent, drop what cannot be better, and again.

    1  reduce exactly, with a first choice on the way                planner.solvers.shrink, .quick, .warmup
    2  in rounds: prices climb a few steps, and each gives a choice                  planner.solvers.ascent
       meanwhile, on a second thread, the choices of the round before are offered
       to the incumbent, and that is shaken                                          planner.solvers.incumbent
    3  once the gap between the incumbent and the bound is much smaller than before, strategies whose excess
       is more than the gap are dropped, and what is left is reduced again
    4  once little is left, HiGHS settles it                                         planner.solvers.repair

Both threads wait for each other at the end of a round, and a round is a fixed amount of work: the time only
decides after how many rounds the search ends, and the same seed goes the same way.
"""

import concurrent.futures
import threading
import time
from collections.abc import Sequence

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.arrays import Arrays, Ints, arrays_of
from planner.solvers.ascent import Ascent, settle, step
from planner.solvers.incumbent import Incumbent, begin, offer, shake, take
from planner.solvers.interning import Interner
from planner.solvers.mapping import Reduced, reduced, restore, translate
from planner.solvers.quick import quick
from planner.solvers.record import ROUNDING, Record, note
from planner.solvers.repair import by_programme
from planner.solvers.shrink import slimmed, within
from planner.solvers.warmup import compiled

STEPS, OFFERED, SHAKES = 6, 2, 1  # of one round
SETTLING = 10  # walks before strategies are dropped
NARROWER = 0.5  # of the gap at which strategies were dropped last: they are dropped again
WORTHWHILE = 0.9  # of the strategies left: with fewer, the arrays are built anew
GAIN = 1e-3  # of the gap: what counts as having gained
SLIMMING = 0.3  # of the time, after which no strategies are compared any more
MARGIN = 0.02  # of the time is left for telling the choice, a second at most
BUILDS = 5.0  # times as long as it took to build the arrays must be left for dropping strategies
STALE = 400, 2.0  # rounds without gain, at least, and relative to all before, that end the search


def search(record: Record, starts: Sequence[Sequence[int]], seed: int, deadline: float) -> str:
    """Fills the record; why that was cut short, or ''. The problem must suit."""
    begun = time.monotonic()
    deadline -= min(1.0, MARGIN * (deadline - begun))
    with concurrent.futures.ThreadPoolExecutor(1) as second:
        stage = _first(record, np.random.default_rng(seed), second, deadline)
        if stage is None:
            return "" if np.isinf(record.bound) else "the time was up"
        for start in starts:
            known = translate(stage.whole, start)
            if known is not None:
                take(stage.known, np.array(known, dtype=np.int64))
        end = "narrow"
        while end:
            try:
                end = _climb(stage, second, deadline)
            finally:
                _report(stage)
            if end and deadline - time.monotonic() > BUILDS * stage.built:
                stage = _narrowed(stage)
    if record.gap > ROUNDING and time.monotonic() < deadline:
        _close(stage, deadline)
    return "the time was up" if record.gap > ROUNDING and time.monotonic() > deadline else ""


def _first(
    record: Record, draw: np.random.Generator, second: concurrent.futures.Executor, deadline: float
) -> "_Stage | None":
    """The reduced problem with its search, once the kernels are ready. None, with the bound infinite, if
    nothing is allowed, and None if there is no time for that; then a quick choice is noted."""
    begun, stop = time.monotonic(), threading.Event()
    ready = second.submit(compiled, stop, deadline)
    try:
        whole = _whole(record, begun + SLIMMING * (deadline - begun))
        if whole is None:
            record.bound = np.inf
            return None
        built = time.monotonic() - begun
        if not ready.result(timeout=max(0.0, deadline - time.monotonic())):
            note(record, restore(whole, quick(whole.problem, lambda: time.monotonic() > deadline)))
            return None
    except TimeoutError:
        return None
    finally:
        stop.set()
    return _Stage(record, whole, draw, built)


def _whole(record: Record, deadline: float) -> Reduced | None:
    """The problem reduced as far as one gets by the deadline; None if nothing is allowed."""
    intern = Interner()
    whole = reduced(record.problem, intern)
    if whole is None:
        return None
    note(record, restore(whole, quick(whole.problem, lambda: True)))
    return slimmed(whole, intern, deadline)


class _Stage:
    """One reduced problem with its search. before: the stage it comes from; gained: the last round that
    gained anything; narrow_at: the gap at which strategies are dropped; built: seconds that it took to
    reduce the whole problem."""

    def __init__(
        self,
        record: Record,
        whole: Reduced,
        draw: np.random.Generator,
        built: float,
        before: "_Stage | None" = None,
    ) -> None:
        self.record, self.whole, self.draw, self.built = record, whole, draw, built
        self.arrays: Arrays = arrays_of(whole.problem, Interner())
        self.ascent = Ascent(self.arrays)
        self.known = Incumbent(self.arrays, draw)
        self.narrow_at = np.inf
        self.rounds = self.gained = 0
        if before is None:
            begin(self.known)
        else:
            prices = np.zeros(record.problem.horizon)
            prices[before.arrays.times] = before.ascent.best[0]
            self.ascent.prices = prices[self.arrays.times]
            self.ascent.active = self.ascent.prices > 0.0
            self.ascent.rates, self.ascent.spell = before.ascent.rates, before.ascent.spell
            self.ascent.pace = before.ascent.pace
            self.narrow_at = NARROWER * before.gap
            self.rounds, self.gained = before.rounds, before.gained

    @property
    def gap(self) -> float:
        """Between the incumbent and the bound, in seconds."""
        return self.known.cost - max(self.ascent.bound, self.record.bound)


def _climb(stage: _Stage, second: concurrent.futures.Executor, deadline: float) -> str:
    """Rounds, until strategies can be dropped ("narrow"), nothing moves any more, or the time is up ("")."""
    ascent, known = stage.ascent, stage.known
    made: list[tuple[Ints, Floats]] = []
    while time.monotonic() < deadline and stage.gap > ROUNDING * abs(known.cost):
        cost, gap, spells = known.cost, stage.gap, ascent.spells
        work = second.submit(_better, known, made, ascent.until)
        try:
            made = _steps(ascent, cost)
        finally:
            work.result()
        stage.rounds += 1
        if known.cost < cost or stage.gap < (1.0 - GAIN) * gap:
            stage.gained = stage.rounds
        if ascent.spells > spells and stage.gap <= stage.narrow_at and np.isfinite(known.cost):
            return "narrow"
        if stage.rounds - stage.gained > max(STALE[0], STALE[1] * stage.gained):
            break
    return ""


def _steps(ascent: Ascent, target: float) -> list[tuple[Ints, Floats]]:
    """One round of steps; the choices of the last ones, with the costs they were made at."""
    made = []
    for _ in range(STEPS):
        step(ascent, target)
        made.append((ascent.choice.copy(), ascent.costs.copy()))
    return made[-OFFERED:]


def _better(known: Incumbent, made: Sequence[tuple[Ints, Floats]], until: Floats) -> None:
    """One round of offers and shakes, of choices made before."""
    for choice, costs in made:
        offer(known, choice, costs, until)
    for _ in range(SHAKES):
        shake(known, until)


def _report(stage: _Stage) -> None:
    """Tells the record. What was dropped is no better than the incumbent, so the lesser of that and the
    bound of what is left is one of the whole."""
    known = stage.known
    bound = min(stage.ascent.bound, known.cost)
    if known.choice is None:
        stage.record.bound = max(stage.record.bound, bound)
        note(stage.record, restore(stage.whole, stage.ascent.choice.tolist()))
    else:
        note(stage.record, restore(stage.whole, known.choice.tolist()), bound)


def _narrowed(stage: _Stage) -> _Stage:
    """The stage without the strategies that no better choice has; the same one if they are too few."""
    smaller = _reduced(stage)
    count, left = (sum(map(len, one.problem.node_costs)) for one in (stage.whole, smaller))
    if left > WORTHWHILE * count:
        stage.narrow_at = NARROWER * stage.gap
        return stage
    after = _Stage(stage.record, smaller, stage.draw, stage.built, stage)
    _hand_over(stage, after)
    return after


def _reduced(stage: _Stage) -> Reduced:
    """What is left of the problem without strategies of too high an excess; it holds the incumbent."""
    base = settle(stage.ascent, SETTLING)
    assert stage.known.choice is not None
    near = stage.ascent.excess <= (stage.known.cost - base) * (1.0 + ROUNDING)
    near[stage.arrays.first[:-1] + stage.known.choice] = True
    kept = [np.flatnonzero(part) for part in np.split(near, stage.arrays.first[1:-1])]
    smaller = within(stage.whole, kept, Interner())
    assert smaller is not None
    return smaller


def _hand_over(stage: _Stage, after: _Stage) -> None:
    assert stage.known.choice is not None
    choice = translate(after.whole, restore(stage.whole, stage.known.choice.tolist()))
    assert choice is not None
    take(after.known, np.array(choice, dtype=np.int64))


def _close(stage: _Stage, deadline: float) -> None:
    """Lets HiGHS settle what is left, if that is little."""
    if stage.known.choice is None:
        return
    smaller = _reduced(stage)
    found = by_programme(smaller.problem, deadline)
    if found is not None:
        note(stage.record, restore(smaller, found.choice))
        stage.record.bound = max(stage.record.bound, min(found.lower_bound, stage.known.cost))
