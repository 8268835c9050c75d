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
from planner.solvers.quick import suits
from planner.solvers.record import Record, answer, note

COMPILED_SIZE = 5_000  # strategies, of a problem that is worth the compiled search
COMPILED_SECONDS = 20.0  # compiling it for the first time may take as long
LARGE = 10_000  # strategies, of a problem that the compiled search takes even in less time


def solve(
    problem: Problem, *, seconds: float = 60.0, seed: int = 0, starts: Sequence[Sequence[int]] = ()
) -> Choice:
    """The best choice found in `seconds`: never worse than any of `starts` that fits the memory limit.

    starts: full choices to begin with, such as the named schemes'. seed: of what is drawn at random, which is
    so for large problems within memory only (`planner.solvers.search`): the same problem, seconds and seed
    give the same answer, unless the time runs out. Interrupting it (KeyboardInterrupt) gives the best choice
    so far with its bound; `stopped` then ends in 'interrupted'."""
    deadline = time.monotonic() + seconds
    record = Record(problem)
    try:
        cut = _search(record, starts, seed, seconds, deadline)
    except KeyboardInterrupt:
        cut = INTERRUPTED
    return answer(record, cut)


def _search(
    record: Record, starts: Sequence[Sequence[int]], seed: int, seconds: float, deadline: float
) -> str:
    """Fills the record; why that was cut short, or ''."""
    for start in starts:
        note(record, tuple(start))
    size = sum(map(len, record.problem.node_costs))
    large = size >= LARGE or (seconds >= COMPILED_SECONDS and size >= COMPILED_SIZE)
    if large and suits(record.problem):
        # Here, because numba takes half a second to load, and more to compile: not for small problems.
        from planner.solvers.search import search

        cut = search(record, starts, seed, deadline)
        if record.best is not None or np.isinf(record.bound) or time.monotonic() > deadline:
            return cut
    first = min(record.seen, key=lambda one: one.cost, default=None)
    intern = Interner()
    network = network_of(record.problem, intern)
    free = minimise(network, intern, start=first and first.choice, deadline=deadline)
    seen = note(record, free.choice, free.bound - network.rounding)
    if free.cut or not np.isfinite(seen.cost) or record.fits(seen):
        return free.cut
    return keep_the_limit(record, free, intern, seconds, deadline)
