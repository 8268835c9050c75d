# pyright: reportArgumentType=false, reportReturnType=false
# numba types these functions; numpy's stubs take an entry of an array for an array.
"""Choices on flat arrays, compiled: what they cost and use, and switching nodes one by one or in groups.

used[t]    bytes of a choice at time t above the least of all nodes; it fits if used <= room everywhere
group      nodes in which two choices differ, joined by edges: each can be switched by itself
"""

import numpy as np
from numba import njit

from planner.cost.problem import Floats
from planner.solvers.arrays import AT, BEGIN, END, MINE, OTHER, TABLE, THEIRS, WIDTH, Arrays, Ints
from planner.solvers.kernel import inner, kernel


@kernel
def cost_of(arrays: Arrays, choice: Ints) -> float:
    """Seconds of a choice."""
    cost = 0.0
    for v in range(len(choice)):
        cost += arrays.costs[arrays.first[v] + choice[v]]
        for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
            if arrays.edges[i, OTHER] > v:
                cost += pair(arrays, i, choice[v], choice[arrays.edges[i, OTHER]])
    return cost


@njit(cache=True, nogil=True, inline="always")
def pair(arrays: Arrays, i: int, a: int, b: int) -> float:
    """The cost of edge i, seen from this end at strategy a, the other end at b."""
    row = arrays.classes[arrays.edges[i, MINE] + a] * arrays.edges[i, WIDTH]
    return arrays.tables[arrays.edges[i, TABLE] + row + arrays.classes[arrays.edges[i, THEIRS] + b]]


@kernel
def used_by(arrays: Arrays, choice: Ints) -> Floats:
    """The usage of a choice, shape (times,)."""
    steps = np.zeros(len(arrays.room) + 1)
    for v in range(len(choice)):
        for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
            held = arrays.bytes[arrays.uses[j, AT] + choice[v]]
            steps[arrays.uses[j, BEGIN]] += held
            steps[arrays.uses[j, END]] -= held
    for t in range(1, len(steps)):
        steps[t] += steps[t - 1]
    return steps[:-1]


@inner
def around(arrays: Arrays, costs: Floats, choice: Ints, v: int, out: Floats) -> int:
    """Fills `out` with the cost of each strategy of v, given all other choices; their number."""
    begin = arrays.first[v]
    size = arrays.first[v + 1] - begin
    for a in range(size):
        out[a] = costs[begin + a]
    for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
        width, mine = arrays.edges[i, WIDTH], arrays.edges[i, MINE]
        at = arrays.edges[i, TABLE] + arrays.classes[arrays.edges[i, THEIRS] + choice[arrays.edges[i, OTHER]]]
        for a in range(size):
            out[a] += arrays.tables[at + arrays.classes[mine + a] * width]
    return size


@inner
def fits(arrays: Arrays, used: Floats, v: int, a: int, b: int) -> bool:
    """Whether switching v from a to b keeps the limit wherever it uses more."""
    for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
        more = arrays.bytes[arrays.uses[j, AT] + b] - arrays.bytes[arrays.uses[j, AT] + a]
        if more > 0.0:
            for t in range(arrays.uses[j, BEGIN], arrays.uses[j, END]):
                if used[t] + more > arrays.room[t]:
                    return False
    return True


@inner
def switch(arrays: Arrays, used: Floats, choice: Ints, v: int, b: int) -> None:
    """Switches v to b."""
    for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
        more = arrays.bytes[arrays.uses[j, AT] + b] - arrays.bytes[arrays.uses[j, AT] + choice[v]]
        if more != 0.0:
            for t in range(arrays.uses[j, BEGIN], arrays.uses[j, END]):
                used[t] += more
    choice[v] = b


@kernel
def descend(arrays: Arrays, choice: Ints, used: Floats, sweeps: int) -> float:
    """Switches single nodes while that saves cost and fits; what was saved."""
    costs = np.empty(arrays.most)
    saved = 0.0
    for _ in range(sweeps):
        before = saved
        for v in range(len(choice)):
            size = around(arrays, arrays.costs, choice, v, costs)
            while True:
                now, best = choice[v], choice[v]
                for a in range(size):
                    if costs[a] < costs[best]:
                        best = a
                if best == now:
                    break
                if fits(arrays, used, v, now, best):
                    saved += costs[now] - costs[best]
                    switch(arrays, used, choice, v, best)
                    break
                costs[best] = np.inf
        if saved == before:
            break
    return saved


@kernel
def ease(arrays: Arrays, choice: Ints, used: Floats, sweeps: int) -> bool:
    """Switches single nodes that are alive when the limit is broken, each to the strategy that takes most off
    the bytes above the limit for its cost; whether the choice fits in the end."""
    costs = np.empty(arrays.most)
    for _ in range(sweeps):
        moved = False
        for v in range(len(choice)):
            if not _broken(arrays, used, v):
                continue
            size = around(arrays, arrays.costs, choice, v, costs)
            now, best, rate = choice[v], -1, 0.0
            for a in range(size):
                if a == now or not np.isfinite(costs[a]):
                    continue
                less = -excess_change(arrays, used, v, now, a)
                if less > 0.0:
                    more = costs[a] - costs[now]
                    gain = less / more if more > 0.0 else np.inf
                    if gain > rate:
                        best, rate = a, gain
            if best >= 0:
                switch(arrays, used, choice, v, best)
                moved = True
        if not moved:
            break
    return kept(arrays, used)


@inner
def kept(arrays: Arrays, used: Floats) -> bool:
    """Whether the limit holds at all times."""
    t = 0
    while t < len(used) and used[t] <= arrays.room[t]:
        t += 1
    return t == len(used)


@inner
def _broken(arrays: Arrays, used: Floats, v: int) -> bool:
    for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
        for t in range(arrays.uses[j, BEGIN], arrays.uses[j, END]):
            if used[t] > arrays.room[t]:
                return True
    return False


@inner
def excess_change(arrays: Arrays, used: Floats, v: int, a: int, b: int) -> float:
    """By how much the bytes above the limit, over all times, would rise."""
    rise = 0.0
    for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
        more = arrays.bytes[arrays.uses[j, AT] + b] - arrays.bytes[arrays.uses[j, AT] + a]
        if more != 0.0:
            for t in range(arrays.uses[j, BEGIN], arrays.uses[j, END]):
                over = used[t] - arrays.room[t]
                rise += max(over + more, 0.0) - max(over, 0.0)
    return rise
