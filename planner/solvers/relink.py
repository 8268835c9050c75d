# pyright: reportArgumentType=false, reportReturnType=false
# numba types these functions; numpy's stubs take an entry of an array for an array.
"""Combining two choices group by group (path relinking: Glover 1998), compiled.

The groups of nodes in which two choices differ do not touch, so each is switched by itself: its rise in cost
is the same whatever the others do, and only memory ties them together. With a price per byte, groups are
taken in the order of what they save at that price; what cost something, to make room, is taken back at the
end where nothing needed it.
"""

import numpy as np
from numba import njit

from planner.cost.problem import Floats
from planner.solvers.arrays import AT, BEGIN, END, OTHER, Arrays, Ints
from planner.solvers.moves import pair


@njit(cache=True, nogil=True)
def relinked(arrays: Arrays, choice: Ints, used: Floats, goal: Ints, until: Floats) -> float:
    """Switches groups of `choice`, which fits, to `goal`, which need not, while it fits; what that saved,
    less than 0 if the cost rose. until[t]: the price of a byte held at all times before t."""
    members, ends = grouped(arrays, choice, goal)
    count = len(ends) - 1
    rises, priced = np.empty(count), np.empty(count)
    for g in range(count):
        nodes = members[ends[g] : ends[g + 1]]
        rises[g] = _rise(arrays, choice, goal, nodes)
        priced[g] = rises[g] + _price(arrays, choice, goal, nodes, until)
    taken = np.zeros(count, dtype=np.bool_)
    steps = np.zeros(len(used) + 1)
    for turn in range(3):  # what saves at the prices; what saves cost and still fits; what cost for nothing
        for g in np.argsort(-rises if turn == 2 else priced):
            if turn == 2:
                wanted = taken[g] and rises[g] > 0.0
            else:
                wanted = not taken[g] and (priced[g] if turn == 0 else rises[g]) < 0.0
            if wanted and _exchange(arrays, choice, used, goal, members[ends[g] : ends[g + 1]], steps):
                taken[g] = not taken[g]
    return -rises[taken].sum()


@njit(cache=True, nogil=True)
def rescued(arrays: Arrays, choice: Ints, used: Floats, goal: Ints) -> bool:
    """Switches groups of `choice`, which does not fit, to `goal`, which does, cheapest per byte first, until
    it fits."""
    members, ends = grouped(arrays, choice, goal)
    steps = np.zeros(len(used) + 1)
    rates = np.empty(len(ends) - 1)
    while (used > arrays.room).any():
        for g in range(len(rates)):
            nodes = members[ends[g] : ends[g + 1]]
            less = (
                0.0
                if choice[nodes[0]] == goal[nodes[0]]
                else -_excess(arrays, choice, used, goal, nodes, steps)
            )
            rise = _rise(arrays, choice, goal, nodes) if less > 0.0 else 0.0
            rates[g] = 0.0 if less <= 0.0 else (np.inf if rise <= 0.0 else less / rise)
        g = np.argmax(rates) if len(rates) else -1
        if g < 0 or rates[g] <= 0.0:
            return False
        _apply(arrays, choice, used, goal, members[ends[g] : ends[g + 1]], steps)
    return True


@njit(cache=True, nogil=True)
def grouped(arrays: Arrays, choice: Ints, goal: Ints) -> tuple[Ints, Ints]:
    """The nodes of all groups, one group behind the other, and where each begins, and the end of the last."""
    seen = choice == goal
    members, ends = [0][:0], [0]
    for root in range(len(choice)):
        if seen[root]:
            continue
        seen[root] = True
        members.append(root)
        at = ends[-1]
        while at < len(members):
            v = members[at]
            at += 1
            for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
                w = arrays.edges[i, OTHER]
                if not seen[w]:
                    seen[w] = True
                    members.append(w)
        ends.append(len(members))
    return np.array(members, dtype=np.int64), np.array(ends, dtype=np.int64)


@njit(cache=True, nogil=True)
def _rise(arrays: Arrays, choice: Ints, goal: Ints, nodes: Ints) -> float:
    """By how much the cost rises when these nodes go to `goal`; no other node near them differs."""
    rise = 0.0
    for v in nodes:
        rise += arrays.costs[arrays.first[v] + goal[v]] - arrays.costs[arrays.first[v] + choice[v]]
        for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
            w = arrays.edges[i, OTHER]
            if choice[w] == goal[w] or w > v:
                rise += pair(arrays, i, goal[v], goal[w]) - pair(arrays, i, choice[v], choice[w])
    return rise


@njit(cache=True, nogil=True)
def _price(arrays: Arrays, choice: Ints, goal: Ints, nodes: Ints, until: Floats) -> float:
    total = 0.0
    for v in nodes:
        for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
            more = arrays.bytes[arrays.uses[j, AT] + goal[v]] - arrays.bytes[arrays.uses[j, AT] + choice[v]]
            total += more * (until[arrays.uses[j, END]] - until[arrays.uses[j, BEGIN]])
    return total


@njit(cache=True, nogil=True)
def _mark(arrays: Arrays, choice: Ints, goal: Ints, nodes: Ints, steps: Floats) -> tuple[int, int]:
    """Adds the change in usage to `steps`, as differences; the times between which it may not be zero."""
    low, high = len(steps) - 1, 0
    for v in nodes:
        for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
            more = arrays.bytes[arrays.uses[j, AT] + goal[v]] - arrays.bytes[arrays.uses[j, AT] + choice[v]]
            if more != 0.0:
                steps[arrays.uses[j, BEGIN]] += more
                steps[arrays.uses[j, END]] -= more
                low, high = min(low, arrays.uses[j, BEGIN]), max(high, arrays.uses[j, END])
    return low, high


@njit(cache=True, nogil=True)
def _exchange(arrays: Arrays, choice: Ints, used: Floats, goal: Ints, nodes: Ints, steps: Floats) -> bool:
    """Exchanges the strategies of these nodes between `choice` and `goal` if that fits; whether it did."""
    low, high = _mark(arrays, choice, goal, nodes, steps)
    more, good = 0.0, True
    for t in range(low, high):
        more += steps[t]
        if more > 0.0 and used[t] + more > arrays.room[t]:
            good = False
            break
    if good:
        more = 0.0
        for t in range(low, high):
            more += steps[t]
            used[t] += more
        for v in nodes:
            choice[v], goal[v] = goal[v], choice[v]
    if low <= high:
        steps[low : high + 1] = 0.0
    return good


@njit(cache=True, nogil=True)
def _excess(arrays: Arrays, choice: Ints, used: Floats, goal: Ints, nodes: Ints, steps: Floats) -> float:
    low, high = _mark(arrays, choice, goal, nodes, steps)
    more, rise = 0.0, 0.0
    for t in range(low, high):
        more += steps[t]
        over = used[t] - arrays.room[t]
        rise += max(over + more, 0.0) - max(over, 0.0)
    if low <= high:
        steps[low : high + 1] = 0.0
    return rise


@njit(cache=True, nogil=True)
def _apply(arrays: Arrays, choice: Ints, used: Floats, goal: Ints, nodes: Ints, steps: Floats) -> None:
    low, high = _mark(arrays, choice, goal, nodes, steps)
    more = 0.0
    for t in range(low, high):
        more += steps[t]
        used[t] += more
    for v in nodes:
        choice[v] = goal[v]
    if low <= high:
        steps[low : high + 1] = 0.0
