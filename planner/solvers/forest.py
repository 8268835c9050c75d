# pyright: reportArgumentType=false, reportReturnType=false
# numba types these functions; numpy's stubs take an entry of an array for an array.
"""Re-optimising a random forest of nodes exactly, given the strategies of all others, compiled.

Nodes are drawn in a given order; one joins if its neighbours that have joined are in trees of their own, so
no cycle closes. On a forest min-sum is solved by one pass of messages to the roots and one back:

    m_v[b]  =  min_a  h_v[a] + cost_vp(a, b),     h_v[a] = costs_v[a] + sum of the fixed edges + sum of m_w

with p the parent of v, w its children. About half of all nodes join, in a sparse network, so that one pass
moves very many nodes at once, each as well as the rest allows (tree-based block coordinate descent).
"""

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats
from planner.solvers.arrays import INWARD, MINE, OTHER, OUTWARD, TABLE, THEIRS, WIDTH, Arrays, Ints
from planner.solvers.kernel import inner, kernel

Flags = NDArray[np.bool_]


@kernel
def replant(arrays: Arrays, costs: Floats, choice: Ints, order: Ints) -> None:
    """Gives the nodes of the forest that `order` makes their best strategies at `costs`."""
    inside = _grown(arrays, order)
    parent, ahead = _rooted(arrays, inside)
    best = np.zeros(arrays.messages, dtype=np.int64)
    messages = np.empty(arrays.messages)
    hat = np.empty(arrays.most)
    for index in range(len(ahead) - 1, -1, -1):
        v = ahead[index]
        _collect(arrays, costs, choice, inside, parent[v], messages, v, hat)
        if parent[v] >= 0:
            _tell(arrays, parent[v], messages, best, v, hat)
        else:
            least = 0
            for a in range(1, arrays.first[v + 1] - arrays.first[v]):
                if hat[a] < hat[least]:
                    least = a
            choice[v] = least
    for v in ahead:
        i = parent[v]
        if i >= 0:
            u = arrays.edges[i, OTHER]
            choice[v] = best[arrays.edges[i, OUTWARD] + arrays.classes[arrays.edges[i, THEIRS] + choice[u]]]


@inner
def _find(tree: Ints, v: int) -> int:
    while tree[v] != v:
        tree[v] = tree[tree[v]]
        v = tree[v]
    return v


@inner
def _grown(arrays: Arrays, order: Ints) -> Flags:
    """Which nodes are in the forest; `tree` points each one to its tree, by union and find."""
    count = len(arrays.first) - 1
    inside = np.zeros(count, dtype=np.bool_)
    tree = np.arange(count)
    met = np.full(count, -1)
    for v in order:
        good = True
        for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
            if inside[arrays.edges[i, OTHER]]:
                root = _find(tree, arrays.edges[i, OTHER])
                if met[root] == v:
                    good = False
                    break
                met[root] = v
        if good:
            inside[v] = True
            for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
                if inside[arrays.edges[i, OTHER]]:
                    tree[_find(tree, arrays.edges[i, OTHER])] = v
    return inside


@inner
def _rooted(arrays: Arrays, inside: Flags) -> tuple[Ints, Ints]:
    """parent[v]: the edge from v to its parent, -1 for roots; the forest's nodes, parents first."""
    count = len(arrays.first) - 1
    parent = np.full(count, -2)
    ahead = np.empty(count, dtype=np.int64)
    size = 0
    for root in range(count):
        if not inside[root] or parent[root] != -2:
            continue
        parent[root] = -1
        ahead[size] = root
        at = size
        size += 1
        while at < size:
            v = ahead[at]
            at += 1
            for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
                w = arrays.edges[i, OTHER]
                if inside[w] and parent[w] == -2:
                    parent[w] = _back(arrays, w, v)
                    ahead[size] = w
                    size += 1
    return parent, ahead[:size]


@inner
def _back(arrays: Arrays, w: int, v: int) -> int:
    """The edge between w and v, seen from w; edges are in the order of their other ends."""
    low, high = arrays.edge_of[w], arrays.edge_of[w + 1]
    while low < high:
        middle = (low + high) // 2
        if arrays.edges[middle, OTHER] < v:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _collect(
    arrays: Arrays,
    costs: Floats,
    choice: Ints,
    inside: Flags,
    up: int,
    messages: Floats,
    v: int,
    hat: Floats,
) -> None:
    """Fills `hat` with h_v; `up` is the edge to the parent."""
    begin = arrays.first[v]
    size = arrays.first[v + 1] - begin
    for a in range(size):
        hat[a] = costs[begin + a]
    for i in range(arrays.edge_of[v], arrays.edge_of[v + 1]):
        if i == up:
            continue
        w, mine = arrays.edges[i, OTHER], arrays.edges[i, MINE]
        if inside[w]:
            for a in range(size):
                hat[a] += messages[arrays.edges[i, INWARD] + arrays.classes[mine + a]]
        else:
            width = arrays.edges[i, WIDTH]
            at = arrays.edges[i, TABLE] + arrays.classes[arrays.edges[i, THEIRS] + choice[w]]
            for a in range(size):
                hat[a] += arrays.tables[at + arrays.classes[mine + a] * width]


@inner
def _tell(arrays: Arrays, i: int, messages: Floats, best: Ints, v: int, hat: Floats) -> None:
    """The message along edge i, from v to its parent, with the strategies that give it."""
    width, out = arrays.edges[i, WIDTH], arrays.edges[i, OUTWARD]
    for b in range(width):
        messages[out + b] = np.inf
    for a in range(arrays.first[v + 1] - arrays.first[v]):
        at = arrays.edges[i, TABLE] + arrays.classes[arrays.edges[i, MINE] + a] * width
        for b in range(width):
            cost = hat[a] + arrays.tables[at + b]
            if cost < messages[out + b]:
                messages[out + b] = cost
                best[out + b] = a
