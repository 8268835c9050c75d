"""The solver the planner calls: exact where that is possible, with a proven gap where it is not."""

import time
from collections.abc import Sequence

import numpy as np

from planner.cost.problem import Choice, Problem
from planner.solvers.interning import Interner
from planner.solvers.memory import keep_the_limit
from planner.solvers.minplus import INTERRUPTED
from planner.solvers.network import network_of
from planner.solvers.pruning import minimise
from planner.solvers.record import Record, answer, note


def solve(
    problem: Problem, *, seconds: float = 60.0, seed: int = 0, starts: Sequence[Sequence[int]] = ()
) -> Choice:
    """The best choice found in `seconds`: never worse than any of `starts` that fits the memory limit.

    starts: full choices to begin with, such as the named schemes'. seed: taken because every solver takes
    one; it changes nothing, since nothing here is random: the same problem and seconds give the same answer,
    unless the time runs out. Interrupting it (KeyboardInterrupt) gives the best choice so far with its bound;
    `stopped` then ends in 'interrupted'."""
    del seed
    deadline = time.monotonic() + seconds
    record = Record(problem)
    try:
        cut = _search(record, starts, seconds, deadline)
    except KeyboardInterrupt:
        cut = INTERRUPTED
    return answer(record, cut)


def _search(record: Record, starts: Sequence[Sequence[int]], seconds: float, deadline: float) -> str:
    """Fills the record; why that was cut short, or ''."""
    for start in starts:
        note(record, tuple(start))
    first = min(record.seen, key=lambda one: one.cost, default=None)
    intern = Interner()
    network = network_of(record.problem, intern)
    free = minimise(network, intern, start=first and first.choice, deadline=deadline)
    seen = note(record, free.choice, free.bound - network.rounding)
    if free.cut or not np.isfinite(seen.cost) or record.fits(seen):
        return free.cut
    return keep_the_limit(record, free, intern, seconds, deadline)
