"""Compiling all kernels on a problem of two nodes, while something else is done with the real one."""

import threading
import time
from collections.abc import Callable

import numpy as np

from planner.cost.problem import Problem, Usage
from planner.solvers import forest, messages, moves, relink
from planner.solvers.arrays import Arrays, arrays_of
from planner.solvers.interning import Interner

FIRST = 0.5  # seconds that the first kernel takes on a quiet machine
SECOND = 8.0  # times as long as the first one the second takes, the slowest of all


def compiled(stop: threading.Event, deadline: float = np.inf) -> bool:
    """Compiles what is not kept from an earlier run, one kernel at a time; whether all are compiled. No more
    is begun once `stop` is set, or if it might not be done by the deadline: nothing can interrupt it. Ten
    seconds in all on a quiet machine; half a second if everything is kept."""
    expected = FIRST
    for index, run in enumerate(_runs(_two_nodes())):
        begun = time.monotonic()
        if stop.is_set() or begun + expected > deadline:
            return False
        run()
        took = time.monotonic() - begun
        expected = SECOND * took if index == 0 else took if index == 1 else max(expected, took)
    return True


def _two_nodes() -> Arrays:
    usages = tuple(Usage(v, v, v + 2, np.arange(2.0)) for v in range(2))
    problem = Problem((np.zeros(2),) * 2, ((0, 1),), (np.eye(2),), usages, (), 1.0, 3)
    return arrays_of(problem, Interner())


def _runs(arrays: Arrays) -> list[Callable[[], object]]:
    """One call of each kernel that Python calls, with the types it is called with. A quick one, whose time
    tells whether they are kept, then the slowest first."""
    choice, goal = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    used, until = np.zeros(len(arrays.room)), np.zeros(len(arrays.room) + 1)
    costs, excess = arrays.costs.copy(), arrays.costs.copy()
    sent, share = np.zeros(arrays.messages), np.ones(2)
    return [
        lambda: moves.cost_of(arrays, choice),
        lambda: relink.relinked(arrays, choice, used, goal.copy(), until),
        lambda: forest.replant(arrays, costs, choice, np.arange(2)),
        lambda: messages.walk(arrays, costs, share, sent, excess, choice),
        lambda: relink.rescued(arrays, choice, used, goal),
        lambda: moves.ease(arrays, choice, used, 1),
        lambda: moves.descend(arrays, choice, used, 1),
        lambda: messages.priced(arrays, used, costs),
        lambda: moves.used_by(arrays, choice),
    ]
