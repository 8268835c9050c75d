# pyright: reportArgumentType=false, reportReturnType=false
# numba types these functions; numpy's stubs take an entry of an array for an array.
"""Combining two choices group by group (path relinking: Glover 1998), compiled.

The groups of nodes in which two choices differ do not touch, so each is switched by itself: its rise in cost
is the same whatever the others do, and only memory ties them together. With a price per byte, groups are
taken in the order of what they save at that price; what cost something, to make room, is taken back at the
end where nothing needed it. Group g is members[ends[g] : ends[g + 1]].
"""

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.arrays import AT, BEGIN, END, OTHER, Arrays, Ints
from planner.solvers.kernel import inner, kernel
from planner.solvers.moves import kept, pair


def relinked(arrays: Arrays, choice: Ints, used: Floats, goal: Ints, until: Floats) -> float:
    """Switches groups of `choice`, which fits, to `goal`, which need not, while it fits; what that saved,
    less than 0 if the cost rose. until[t]: the price of a byte held at all times before t."""
    members, ends = grouped(arrays, choice, goal)
    rises = _rises(arrays, choice, goal, members, ends, until)
    orders = np.stack([np.argsort(one, kind="stable") for one in (rises[1], rises[0], -rises[0])])
    return _switched(arrays, choice, used, goal, members, ends, rises, orders)


@kernel
def _rises(arrays: Arrays, choice: Ints, goal: Ints, members: Ints, ends: Ints, until: Floats) -> Floats:
    """By how much the cost rises with each group, and by how much at the prices, shape (2, groups)."""
    rises = np.zeros((2, len(ends) - 1))
    for g in range(len(ends) - 1):
        nodes = members[ends[g] : ends[g + 1]]
        rises[0, g] = _rise(arrays, choice, goal, nodes)
        rises[1, g] = rises[0, g] + _price(arrays, choice, goal, nodes, until)
    return rises


@kernel
def _switched(
    arrays: Arrays,
    choice: Ints,
    used: Floats,
    goal: Ints,
    members: Ints,
    ends: Ints,
    rises: Floats,
    orders: Ints,
) -> float:
    """Exchanges groups in three turns: what saves at the prices; what saves cost and still fits; what cost
    something for nothing. What that saved."""
    taken = np.zeros(len(ends) - 1, dtype=np.bool_)
    steps = np.zeros(len(used) + 1)
    saved = 0.0
    for turn in range(3):
        for i in range(len(taken)):
            g = orders[turn, i]
            if turn == 2:
                wanted = taken[g] and rises[0, g] > 0.0
            else:
                wanted = not taken[g] and rises[1 - turn, g] < 0.0
            if wanted and _exchange(arrays, choice, used, goal, members[ends[g] : ends[g + 1]], steps):
                taken[g] = not taken[g]
                saved += -rises[0, g] if taken[g] else rises[0, g]
    return saved


@kernel
def rescued(arrays: Arrays, choice: Ints, used: Floats, goal: Ints) -> bool:
    """Switches groups of `choice`, which does not fit, to `goal`, which does, cheapest per byte first, until
    it fits."""
    members, ends = grouped(arrays, choice, goal)
    steps = np.zeros(len(used) + 1)
    while not kept(arrays, used):
        best, highest = -1, 0.0
        for g in range(len(ends) - 1):
            nodes = members[ends[g] : ends[g + 1]]
            if choice[nodes[0]] == goal[nodes[0]]:
                continue
            less = -_excess(arrays, choice, used, goal, nodes, steps)
            rise = _rise(arrays, choice, goal, nodes) if less > 0.0 else 1.0
            rate = less / rise if rise > 0.0 else np.inf
            if rate > highest:
                best, highest = g, rate
        if best < 0:
            return False
        _apply(arrays, choice, used, goal, members[ends[best] : ends[best + 1]], steps)
    return True


@kernel
def grouped(arrays: Arrays, choice: Ints, goal: Ints) -> tuple[Ints, Ints]:
    """The nodes of all groups, one group behind the other, and where each begins, and the end of the last."""
    count = len(choice)
    seen = np.zeros(count, dtype=np.bool_)
    members, ends = np.empty(count, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    groups, size = 0, 0
    for root in range(count):
        if seen[root] or choice[root] == goal[root]:
            continue
        seen[root] = True
        members[size] = root
        at = size
        size += 1
        while at < size:
            v = members[at]
            at += 1
            for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
                w = arrays.edges[i, OTHER]
                if not seen[w] and choice[w] != goal[w]:
                    seen[w] = True
                    members[size] = w
                    size += 1
        groups += 1
        ends[groups] = size
    return members[:size], ends[: groups + 1]


@inner
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


@inner
def _price(arrays: Arrays, choice: Ints, goal: Ints, nodes: Ints, until: Floats) -> float:
    total = 0.0
    for v in nodes:
        for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
            more = arrays.bytes[arrays.uses[j, AT] + goal[v]] - arrays.bytes[arrays.uses[j, AT] + choice[v]]
            total += more * (until[arrays.uses[j, END]] - until[arrays.uses[j, BEGIN]])
    return total


@inner
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


@inner
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
    for t in range(low, high + 1):
        steps[t] = 0.0
    return good


@inner
def _excess(arrays: Arrays, choice: Ints, used: Floats, goal: Ints, nodes: Ints, steps: Floats) -> float:
    low, high = _mark(arrays, choice, goal, nodes, steps)
    more, rise = 0.0, 0.0
    for t in range(low, high):
        more += steps[t]
        over = used[t] - arrays.room[t]
        rise += max(over + more, 0.0) - max(over, 0.0)
    for t in range(low, high + 1):
        steps[t] = 0.0
    return rise


@inner
def _apply(arrays: Arrays, choice: Ints, used: Floats, goal: Ints, nodes: Ints, steps: Floats) -> None:
    low, high = _mark(arrays, choice, goal, nodes, steps)
    more = 0.0
    for t in range(low, high):
        more += steps[t]
        used[t] += more
    for v in nodes:
        choice[v] = goal[v]
    for t in range(low, high + 1):
        steps[t] = 0.0
