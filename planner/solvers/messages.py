# pyright: reportArgumentType=false, reportReturnType=false
# numba types these functions; numpy's stubs take an entry of an array for an array.
"""Sequential tree-reweighted min-sum (TRW-S), compiled, with a choice read off on the way.

The mathematics is that of `planner.solvers.bounds` (Kolmogorov, PAMI 2006), on the flat arrays of
`planner.solvers.arrays`: a walk over a network of 2.5 million table entries takes milliseconds, so that
prices on memory can be moved after each walk. Going forward, each node takes the strategy that is best given
those already taken and the messages of those to come (section 4 there); the bound is made going back.

Each helper is called in one place only: what is inlined twice is compiled twice.
"""

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.arrays import (
    AT,
    BEGIN,
    END,
    HEIGHT,
    INWARD,
    MINE,
    OTHER,
    OUTWARD,
    TABLE,
    THEIRS,
    WIDTH,
    Arrays,
    Ints,
)
from planner.solvers.kernel import inner, kernel


def shares(arrays: Arrays) -> Floats:
    """1 / n_v: the part of a node's costs that each chain through it gets."""
    nodes = np.repeat(np.arange(len(arrays.first) - 1), np.diff(arrays.edge_of))
    later = np.bincount(nodes[arrays.edges[:, OTHER] > nodes], minlength=len(arrays.first) - 1)
    return 1.0 / np.maximum(np.maximum(later, np.diff(arrays.edge_of) - later), 1)


@kernel
def priced(arrays: Arrays, prices: Floats, costs: Floats) -> None:
    """Fills `costs` with those of all strategies at `prices` per byte and time."""
    until = np.zeros(len(prices) + 1)
    for t in range(len(prices)):
        until[t + 1] = until[t] + prices[t]
    for a in range(len(costs)):
        costs[a] = arrays.costs[a]
    for v in range(len(arrays.first) - 1):
        begin, end = arrays.first[v], arrays.first[v + 1]
        for j in range(arrays.use_of[v], arrays.use_of[v + 1]):
            price = until[arrays.uses[j, END]] - until[arrays.uses[j, BEGIN]]
            if price > 0.0:
                at = arrays.uses[j, AT] - begin
                for a in range(begin, end):
                    costs[a] += price * arrays.bytes[at + a]


@kernel
def walk(
    arrays: Arrays, costs: Floats, share: Floats, messages: Floats, excess: Floats, choice: Ints
) -> float:
    """One walk forward, which fills `choice`, and one back, which fills `excess`; the bound."""
    hat, least = np.empty(arrays.most), np.empty(arrays.most)
    count = len(arrays.first) - 1
    bound = 0.0
    for step in range(2 * count):
        forward = step < count
        v = step if forward else 2 * count - 1 - step
        size = arrays.first[v + 1] - arrays.first[v]
        _gather(arrays, costs, messages, v, hat)
        low = np.inf
        for a in range(size):
            low = min(low, hat[a])
        if forward:
            _take(arrays, costs, messages, choice, v, least)
        else:
            bound += low
            for a in range(size):
                excess[arrays.first[v] + a] = hat[a] - low
        for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
            if (arrays.edges[i, OTHER] > v) == forward:
                taken = _send(arrays, messages, i, v, hat, low, share[v], least)
                bound += 0.0 if forward else taken
    return bound


@inner
def _gather(arrays: Arrays, costs: Floats, messages: Floats, v: int, hat: Floats) -> None:
    begin = arrays.first[v]
    size = arrays.first[v + 1] - begin
    for a in range(size):
        hat[a] = costs[begin + a]
    for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
        inward, mine = arrays.edges[i, INWARD], arrays.edges[i, MINE]
        for a in range(size):
            hat[a] += messages[inward + arrays.classes[mine + a]]


@inner
def _take(arrays: Arrays, costs: Floats, messages: Floats, choice: Ints, v: int, part: Floats) -> None:
    """The strategy that is best given the choices of lower nodes and the messages of higher ones."""
    begin = arrays.first[v]
    size = arrays.first[v + 1] - begin
    for a in range(size):
        part[a] = costs[begin + a]
    for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
        w, mine = arrays.edges[i, OTHER], arrays.edges[i, MINE]
        if w < v:
            width = arrays.edges[i, WIDTH]
            at = arrays.edges[i, TABLE] + arrays.classes[arrays.edges[i, THEIRS] + choice[w]]
            for a in range(size):
                part[a] += arrays.tables[at + arrays.classes[mine + a] * width]
        else:
            inward = arrays.edges[i, INWARD]
            for a in range(size):
                part[a] += messages[inward + arrays.classes[mine + a]]
    best = 0
    for a in range(1, size):
        if part[a] < part[best]:
            best = a
    choice[v] = best


@inner
def _send(
    arrays: Arrays, messages: Floats, i: int, v: int, hat: Floats, low: float, share: float, least: Floats
) -> float:
    """Renews the message along edge i; the minimum taken off it."""
    height, width = arrays.edges[i, HEIGHT], arrays.edges[i, WIDTH]
    mine, inward = arrays.edges[i, MINE], arrays.edges[i, INWARD]
    for r in range(height):
        least[r] = np.inf
    for a in range(arrays.first[v + 1] - arrays.first[v]):
        r = arrays.classes[mine + a]
        least[r] = min(least[r], hat[a])
    out = messages[arrays.edges[i, OUTWARD] : arrays.edges[i, OUTWARD] + width]
    at, taken = arrays.edges[i, TABLE], np.inf
    for b in range(width):
        out[b] = np.inf
    for r in range(height):
        part = (least[r] - low) * share - messages[inward + r]
        row = arrays.tables[at + r * width : at + (r + 1) * width]
        for b in range(width):
            out[b] = min(out[b], part + row[b])
    for b in range(width):
        taken = min(taken, out[b])
    for b in range(width):
        out[b] -= taken
    return taken
