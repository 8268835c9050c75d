"""Compiling all kernels on a problem of two nodes, while something else is done with the real one."""

import threading
from collections.abc import Callable

import numpy as np

from planner.cost.problem import Problem, Usage
from planner.solvers import forest, messages, moves, relink
from planner.solvers.arrays import Arrays, arrays_of
from planner.solvers.interning import Interner


def compiled(stop: threading.Event) -> None:
    """Compiles what is not kept from an earlier run, one kernel at a time until `stop` is set. A second each
    at most, ten seconds in all; half a second if everything is kept."""
    for run in _runs(_two_nodes()):
        if stop.is_set():
            return
        run()


def _two_nodes() -> Arrays:
    usages = tuple(Usage(v, v, v + 2, np.arange(2.0)) for v in range(2))
    problem = Problem((np.zeros(2),) * 2, ((0, 1),), (np.eye(2),), usages, (), 1.0, 3)
    return arrays_of(problem, Interner())


def _runs(arrays: Arrays) -> list[Callable[[], object]]:
    """One call of each kernel that Python calls, with the types it is called with."""
    choice, goal = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    used, until = np.zeros(len(arrays.room)), np.zeros(len(arrays.room) + 1)
    costs, excess = arrays.costs.copy(), arrays.costs.copy()
    sent, share = np.zeros(arrays.messages), np.ones(2)
    return [
        lambda: moves.used_by(arrays, choice),
        lambda: moves.cost_of(arrays, choice),
        lambda: moves.ease(arrays, choice, used, 1),
        lambda: moves.descend(arrays, choice, used, 1),
        lambda: messages.priced(arrays, used, costs),
        lambda: messages.walk(arrays, costs, share, sent, excess, choice),
        lambda: forest.replant(arrays, costs, choice, np.arange(2)),
        lambda: relink.relinked(arrays, choice, used, goal.copy(), until),
        lambda: relink.rescued(arrays, choice, used, goal),
    ]
