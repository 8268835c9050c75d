"""Exact reduction to fewer nodes: a node that another one leaves no choice follows it.

    allow_uw[a, b]    whether the pair (a, b) is allowed: finite in every edge between u and w
    arc consistency   a strategy with no partner at some edge is dropped (Mackworth 1977)
    fold v into u     where every row of allow_uv has one partner: x_v = f(x_u); v's edges move to u

Real sharding problems are mostly such edges: an op that must be laid out as its operand is. Folding needs the
patterns of what is allowed only; costs, usages and edges are restated once at the end, each old node being
its root's strategy seen through a map. Memory stays exact: the usages of all that was folded into a node,
each over its own interval, become usages of that node.
"""

import collections
import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Problem, Usage
from planner.solvers.factors import Map
from planner.solvers.interning import Interner

WIDEST = 4  # a node of more than two edges is folded into one of at most so many times its strategies

Pattern = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Reduced:
    """problem: the smaller one. root[v]: its node that old node v follows. strategies[v]: v's strategy for
    each strategy of its root."""

    problem: Problem
    root: tuple[int, ...]
    strategies: tuple[Map, ...]


def restore(reduced: Reduced, choice: Sequence[int]) -> tuple[int, ...]:
    """The choice of the old problem that one of the smaller stands for; it costs and uses the same."""
    return tuple(int(one[choice[r]]) for r, one in zip(reduced.root, reduced.strategies, strict=True))


def translate(reduced: Reduced, choice: Sequence[int]) -> tuple[int, ...] | None:
    """The choice of the smaller problem that stands for one of the old; None if there is none."""
    matching: list[Pattern | None] = [None] * len(reduced.problem.node_costs)
    for v, (r, one) in enumerate(zip(reduced.root, reduced.strategies, strict=True)):
        same = one == choice[v]
        known = matching[r]
        matching[r] = same if known is None else known & same
    if any(one is None or not one.any() for one in matching):
        return None
    return tuple(int(one.argmax()) for one in matching if one is not None)


def reduced(problem: Problem, intern: Interner) -> Reduced | None:
    """The problem without forbidden strategies and with all followers folded; None if nothing is allowed."""
    graph = _Graph(problem, intern)
    if not _consistent(graph, range(len(graph.allowed))):
        return None
    _fold_all(graph)
    return _restated(problem, graph)


class _Graph:
    """kept[v]: the strategies left, as a map to the old ones; near[v][w]: what is allowed, rows of v;
    steps: (v, u, f), x_v = f[x_u], in the order they were taken; v may be u, which restricts it."""

    def __init__(self, problem: Problem, intern: Interner) -> None:
        self.intern = intern
        self.allowed: list[Pattern] = [np.isfinite(costs) for costs in problem.node_costs]
        self.near: list[dict[int, Pattern]] = [{} for _ in self.allowed]
        self.steps: list[tuple[int, int, Map]] = []
        self.folded = [False] * len(self.allowed)
        for (u, w), table in zip(problem.edges, problem.edge_costs, strict=True):
            one = intern(table)
            allow = intern.recall(("allow", id(one)), lambda one=one: intern(np.isfinite(one)))
            if u == w:
                self.allowed[u] = self.allowed[u] & np.diagonal(allow)
            else:
                _join(self, u, w, allow)


def _join(graph: _Graph, u: int, w: int, allow: Pattern) -> None:
    """Adds an edge; parallel ones must both allow a pair."""
    known = graph.near[u].get(w)
    if known is not None and known is not allow:
        key = ("both", id(known), id(allow))
        allow = graph.intern.recall(key, lambda: graph.intern(known & allow))
    graph.near[u][w] = allow
    graph.near[w][u] = _turned(graph, allow)


def _turned(graph: _Graph, allow: Pattern) -> Pattern:
    return graph.intern.recall(("turned", id(allow)), lambda: graph.intern(allow.T))


def _rows(graph: _Graph, allow: Pattern, which: Map) -> Pattern:
    return graph.intern.recall(("rows", id(allow), id(which)), lambda: graph.intern(allow[which]))


def _consistent(graph: _Graph, nodes: Sequence[int]) -> bool:
    """Drops all strategies without partners, beginning at `nodes`; whether every node has some left."""
    ahead, waiting = collections.deque(nodes), set(nodes)
    while ahead:
        v = ahead.popleft()
        waiting.discard(v)
        able = graph.allowed[v]
        for allow in graph.near[v].values():
            able = able & graph.intern.recall(("able", id(allow)), lambda allow=allow: allow.any(axis=1))
        if able.all():
            continue
        if not able.any():
            return False
        kept = graph.intern(np.flatnonzero(able))
        graph.allowed[v] = able[kept]
        graph.steps.append((v, v, kept))
        for w, allow in graph.near[v].items():
            less = _rows(graph, allow, kept)
            graph.near[v][w], graph.near[w][v] = less, _turned(graph, less)
        fresh = [w for w in graph.near[v] if w not in waiting]
        ahead.extend(fresh)
        waiting.update(fresh)
    return True


def _fold_all(graph: _Graph) -> None:
    """Folds until no node follows another; few edges first. Nodes of one strategy become one, and what their
    edges cost is up to the other end."""
    single = [v for v, able in enumerate(graph.allowed) if len(able) == 1]
    for v in single:
        for w in graph.near[v]:
            del graph.near[w][v]
        graph.near[v] = {}
        if v != single[0]:
            _fold(graph, v, single[0], np.zeros(1, dtype=np.intp))
    heap = [(len(near), v) for v, near in enumerate(graph.near)]
    heapq.heapify(heap)
    while heap:
        degree, v = heapq.heappop(heap)
        if graph.folded[v] or degree != len(graph.near[v]):
            continue
        to = _leader(graph, v)
        if to is None:
            continue
        others = list(graph.near[v])
        _fold(graph, v, *to)
        for w in others:
            heapq.heappush(heap, (len(graph.near[w]), w))


def _leader(graph: _Graph, v: int) -> tuple[int, Map] | None:
    """A neighbour that v may be folded into, with the map."""
    for u, allow in graph.near[v].items():
        back = graph.near[u][v]
        to = graph.intern.recall(("map", id(back)), lambda back=back: _as_map(back, graph.intern))
        if to is None or (len(graph.near[v]) > 2 and len(back) > WIDEST * len(allow)):
            continue
        return u, to
    return None


def _as_map(allow: Pattern, intern: Interner) -> Map | None:
    """The only partner of each row; None if some row has several."""
    return intern(allow.argmax(axis=1)) if (allow.sum(axis=1) == 1).all() else None


def _fold(graph: _Graph, v: int, u: int, to: Map) -> None:
    graph.near[u].pop(v, None)
    graph.near[v].pop(u, None)
    for w, allow in graph.near[v].items():
        del graph.near[w][v]
        _join(graph, u, w, _rows(graph, allow, to))
    graph.near[v] = {}
    graph.folded[v] = True
    graph.steps.append((v, u, graph.intern(to)))


def _restated(problem: Problem, graph: _Graph) -> Reduced:
    root, seen = _followed(graph)
    roots = [v for v, folded in enumerate(graph.folded) if not folded]
    number = {v: index for index, v in enumerate(roots)}
    at = tuple(number[r] for r in root)
    costs: list[Floats] = [np.zeros(len(graph.allowed[v])) for v in roots]
    for v, own in enumerate(problem.node_costs):
        costs[at[v]] += own[seen[v]]
    pairs: dict[tuple[int, int], Floats] = {}
    intern = graph.intern
    for (u, w), table in zip(problem.edges, problem.edge_costs, strict=True):
        if at[u] == at[w] or len(costs[at[w]]) == 1:
            costs[at[u]] += table[seen[u], seen[w]]
        elif len(costs[at[u]]) == 1:
            costs[at[w]] += table[seen[u], seen[w]]
        elif at[u] < at[w]:
            _add(pairs, (at[u], at[w]), _through(intern, intern(table), seen[u], seen[w]), intern)
        else:
            turned = intern.recall(("turned", id(intern(table))), lambda table=table: intern(table.T))
            _add(pairs, (at[w], at[u]), _through(intern, turned, seen[w], seen[u]), intern)
    small = dataclasses.replace(
        problem,
        node_costs=tuple(intern(one) for one in costs),
        edges=tuple(pairs),
        edge_costs=tuple(pairs.values()),
        **_usages(problem, at, seen, {pair: e for e, pair in enumerate(pairs)}),
    )
    return Reduced(small, at, tuple(seen))


def _followed(graph: _Graph) -> tuple[list[int], list[Map]]:
    """The root of each node, and its old strategy for each of the root's: steps undone, last one first."""
    root = list(range(len(graph.allowed)))
    intern = graph.intern
    seen: list[Map] = [_all(len(able), intern) for able in graph.allowed]
    for v, u, to in reversed(graph.steps):
        through = seen[u]
        seen[v] = intern.recall(("then", id(to), id(through)), lambda to=to, t=through: intern(to[t]))
        root[v] = root[u]
    return root, seen


def _all(count: int, intern: Interner) -> Map:
    return intern.recall(("all", count), lambda: intern(np.arange(count)))


def _through(intern: Interner, table: Floats, rows: Map, columns: Map) -> Floats:
    key = ("through", id(table), id(rows), id(columns))
    return intern.recall(key, lambda: intern(table[np.ix_(rows, columns)]))


def _add(
    pairs: dict[tuple[int, int], Floats], pair: tuple[int, int], table: Floats, intern: Interner
) -> None:
    known = pairs.get(pair)
    if known is None:
        pairs[pair] = table
    else:
        pairs[pair] = intern.recall(("plus", id(known), id(table)), lambda: intern(known + table))


def _usages(
    problem: Problem, at: Sequence[int], seen: Sequence[Map], number: dict[tuple[int, int], int]
) -> dict[str, tuple[Usage, ...]]:
    """Usages of roots and of the edges between them; those of one interval are added up."""
    nodes: dict[tuple[int, int, int], Floats] = {}
    edges: dict[tuple[int, int, int], Floats] = {}
    for usage in problem.node_usages:
        if usage.last > usage.first:
            v = usage.of
            _hold(nodes, (at[v], usage.first, usage.last), usage.bytes[seen[v]])
    for usage in problem.edge_usages:
        u, w = problem.edges[usage.of]
        if usage.last <= usage.first:
            continue
        pair = at[u], at[w]
        if pair not in number and pair[::-1] not in number:  # the edge is within a node, or one end is fixed
            one = at[u] if len(seen[u]) > 1 else at[w]
            _hold(nodes, (one, usage.first, usage.last), usage.bytes[seen[u], seen[w]])
            continue
        held = usage.bytes[np.ix_(seen[u], seen[w])]
        if at[u] > at[w]:
            pair, held = (pair[1], pair[0]), held.T
        _hold(edges, (number[pair], usage.first, usage.last), held)
    return {
        "node_usages": tuple(Usage(*key, held) for key, held in nodes.items()),
        "edge_usages": tuple(Usage(*key, held) for key, held in edges.items()),
    }


def _hold(held: dict[tuple[int, int, int], Floats], key: tuple[int, int, int], more: Floats) -> None:
    known = held.get(key)
    held[key] = more.copy() if known is None else known + more
