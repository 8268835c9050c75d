"""A problem as flat arrays, for the compiled loops (`planner.solvers.messages`, `planner.solvers.moves`).

Nodes, edges seen from either end, and usages are rows of CSR tables. An edge's table is kept by classes of
equal rows and columns, once per direction: with i an edge seen from v, to w = edges[i, OTHER],

    cost(a, b)  =  tables[TABLE + classes[MINE + a] * WIDTH + classes[THEIRS + b]]

A forbidden cost is a wall that is higher than any choice that is allowed. Time is compressed: what is alive
at any time is alive at one of the maximal ones, and of these only those matter where the limit can be broken.
The least usage of each node is taken off, and off the room.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Problem
from planner.solvers.factors import pair_factor
from planner.solvers.interning import Interner

Ints = NDArray[np.int64]


OTHER, TABLE, MINE, THEIRS, HEIGHT, WIDTH, INWARD, OUTWARD = range(8)  # columns of `edges`
BEGIN, END, AT = range(3)  # columns of `uses`


class Arrays(NamedTuple):  # compiled functions take named tuples, not dataclasses
    """first[v] .. first[v + 1]: the strategies of v in `costs` (seconds).
    edge_of[v] .. edge_of[v + 1]: the rows of `edges` seen from v, in the order of the other ends; HEIGHT,
    WIDTH: the classes of v and of the other end; INWARD, OUTWARD: where the messages from and to it begin, of
    `messages` numbers in all. most: the strategies of a node, at most.
    use_of[v] .. use_of[v + 1]: the rows of `uses` of v; one holds bytes[AT + a] at times BEGIN <= t < END,
    which do not overlap for one node. room[t]: bytes left by what is used in any case; times[t]: the
    problem's time."""

    first: Ints
    costs: Floats
    edge_of: Ints
    edges: Ints
    tables: Floats
    classes: Ints
    use_of: Ints
    uses: Ints
    bytes: Floats
    room: Floats
    times: Ints
    messages: int
    most: int


def arrays_of(problem: Problem, intern: Interner) -> Arrays:
    """The arrays of a problem with no usage on edges, no loop and at most one edge per pair of nodes."""
    sizes = [len(costs) for costs in problem.node_costs]
    first = _ends(sizes)
    wall = _wall(problem)
    return Arrays(
        first=first,
        most=max(sizes),
        costs=_finite(np.concatenate(problem.node_costs).astype(np.float64), wall),
        **_edges(problem, intern, wall),
        **_usages(problem, sizes),
    )


def _ends(sizes: Sequence[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)


def _wall(problem: Problem) -> float:
    """A finite cost in place of a forbidden one, higher than that of any choice that is allowed."""
    tables = {id(table): _highest(table) for table in (*problem.node_costs, *problem.edge_costs)}
    return 2.0 * sum(tables[id(table)] for table in (*problem.node_costs, *problem.edge_costs)) + 1.0


def _highest(table: Floats) -> float:
    return float(np.abs(table[np.isfinite(table)]).max(initial=0.0))


def _finite(costs: Floats, wall: float) -> Floats:
    return np.where(np.isfinite(costs), costs, wall)


class _Pool:
    """Arrays put one behind the other, each distinct one once."""

    def __init__(self) -> None:
        self.parts: list[NDArray] = []
        self.place: dict[int, int] = {}
        self.size = 0

    def put(self, one: NDArray) -> int:
        known = self.place.get(id(one))
        if known is None:
            known = self.place[id(one)] = self.size
            self.parts.append(one)
            self.size += one.size
        return known

    def whole(self, kind: type) -> NDArray:
        return np.concatenate([one.ravel() for one in self.parts] or [np.zeros(0)]).astype(kind)


def _edges(problem: Problem, intern: Interner, wall: float) -> dict[str, Any]:
    tables, classes = _Pool(), _Pool()
    seen: list[list[tuple[int, ...]]] = [[] for _ in problem.node_costs]
    message = 0
    for pair, table in zip(problem.edges, problem.edge_costs, strict=True):
        factor = pair_factor(pair, intern(table), intern)
        turned = intern.recall(
            ("turned", id(factor.table)), lambda one=factor.table: intern(np.ascontiguousarray(one.T))
        )
        (u, w), (rows, columns) = pair, factor.table.shape
        mine, theirs = classes.put(factor.maps[0]), classes.put(factor.maps[1])
        to_u, to_w = message, message + rows
        message += rows + columns
        seen[u].append((w, tables.put(factor.table), mine, theirs, rows, columns, to_u, to_w))
        seen[w].append((u, tables.put(turned), theirs, mine, columns, rows, to_w, to_u))
    rows = [row for of_node in seen for row in sorted(of_node)]
    return {
        "edge_of": _ends([len(of_node) for of_node in seen]),
        "edges": np.array(rows, dtype=np.int64).reshape(-1, OUTWARD + 1),
        "messages": message,
        "tables": _finite(tables.whole(np.float64), wall),
        "classes": classes.whole(np.int64),
    }


def _usages(problem: Problem, sizes: Sequence[int]) -> dict[str, Any]:
    whole = [usage for usage in problem.node_usages if usage.last > usage.first]
    times = maximal_times(np.array([(u.first, u.last) for u in whole], dtype=np.int64).reshape(-1, 2))
    least, most = np.zeros(len(times) + 1), np.zeros(len(times) + 1)
    for usage in whole:
        i, j = np.searchsorted(times, (usage.first, usage.last))
        for bytes_, steps in ((usage.bytes.min(), least), (usage.bytes.max(), most)):
            steps[i] += bytes_
            steps[j] -= bytes_
    tight = np.cumsum(most[:-1]) > problem.usage_limit
    times, room = times[tight], problem.usage_limit - np.cumsum(least[:-1])[tight]
    held: list[dict[tuple[int, int], Floats]] = [{} for _ in sizes]
    for usage in whole:
        i, j = (int(t) for t in np.searchsorted(times, (usage.first, usage.last)))
        above = usage.bytes - usage.bytes.min()
        if i < j and above.any():
            held[usage.of][i, j] = held[usage.of][i, j] + above if (i, j) in held[usage.of] else above
    pieces = [disjoint(of_node) for of_node in held]
    rows = [(i, j, k) for of_node, k in zip(pieces, sizes, strict=True) for i, j, _ in of_node]
    uses = np.array(rows, dtype=np.int64).reshape(-1, AT + 1)
    uses[:, AT] = np.cumsum(uses[:, AT]) - uses[:, AT]
    return {
        "use_of": _ends([len(of_node) for of_node in pieces]),
        "uses": uses,
        "bytes": np.concatenate([one for of_node in pieces for _, _, one in of_node] or [np.zeros(0)]),
        "room": room,
        "times": times,
    }


def maximal_times(spans: Ints) -> Ints:
    """Of half-open spans, rows (first, last): times such that whatever is alive at any time is alive at one
    of them: the last begin before an end."""
    events = np.unique(np.concatenate([2 * spans[:, 1], 2 * spans[:, 0] + 1]))
    begins = events % 2 == 1
    return events[:-1][begins[:-1] & ~begins[1:]] // 2


def disjoint(held: dict[tuple[int, int], Floats]) -> list[tuple[int, int, Floats]]:
    """Usages over spans that may overlap, as usages over spans that do not."""
    if len(held) <= 1:
        return [(i, j, one) for (i, j), one in held.items()]
    changes: dict[int, Floats] = {}
    for (i, j), one in held.items():
        changes[i] = changes[i] + one if i in changes else one
        changes[j] = changes[j] - one if j in changes else -one
    pieces: list[tuple[int, int, Floats]] = []
    now = np.zeros_like(next(iter(held.values())))
    begin = 0
    for t in sorted(changes):
        if now.any() and t > begin:
            pieces.append((begin, t, now))
        now = now + changes[t]
        begin = t
    return pieces
