"""A problem at any prices on its memory: tables that are linear in the prices, and classes that never change.

    table(prices)  =  cost  +  sum over its usages of  bytes * (sum of the prices from first to last)

Strategies that no cost and no usage of an edge tells apart are one class of it, whatever the prices: the
structure of the network is worked out once, and a network at other prices is a pass over the tables. A usage
of an edge is one part of its table, like a cost. Entries are rounded to a grid on which all sums up to a
ceiling are exact, so that equal parts of a network give equal results (`planner.solvers.network`).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats, Problem
from planner.solvers.factors import Factor, Map, equal_rows
from planner.solvers.ilp import maximal_times
from planner.solvers.interning import Interner
from planner.solvers.network import MANTISSA_BITS, Network

Span = tuple[int, int]  # [first, last) of the times that have a price; or a pair of nodes
Allowed = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A table that is linear in prices: parts[0] is the cost, and each later part the bytes of a span."""

    parts: tuple[Floats, ...]
    spans: tuple[Span, ...]


class Priced:
    """times: of the problem, those that may have a price. own, tables: of the nodes, and of the pairs in
    classes. network: of the costs alone, with these classes; its tables are one object only where those of
    `tables` are. most: a bound of the
    cost of any choice; what is forbidden costs far more. rounding: of the value of any choice, at most."""

    def __init__(self, problem: Problem, ceiling: float, intern: Interner) -> None:
        held = (*problem.node_usages, *problem.edge_usages)
        self.times = np.array(_tight(problem, maximal_times(held)), dtype=np.intp)
        wall, self.most = _walls(problem)
        self.grid = float(2.0 ** (np.frexp(max(ceiling, np.finfo(float).tiny))[1] - MANTISSA_BITS))
        self.own, cores = _sheets(problem, self.times, wall, intern)
        self.tables = [core for _, core in cores.values()]
        factors = {pair: Factor(pair, maps, _name(core, intern)) for pair, (maps, core) in cores.items()}
        self.network = Network(tuple(_name(sheet, intern) for sheet in self.own), factors)
        sheets = (*self.own, *self.tables)
        self.rounding = self.grid / 2 * len(sheets)
        self.plain = _plain(sheets, self.grid)
        spans = [span for sheet in sheets for span in sheet.spans]
        self.spans = np.array(spans, dtype=np.intp).reshape(-1, 2)


def tables_at(
    priced: Priced, prices: Floats, left: Mapping[int, Allowed]
) -> tuple[list[Floats], list[Floats]]:
    """The tables of the nodes and of the pairs at prices, on the grid; infinite only where a strategy is not
    left. Equal ones are one object, and what has no price is the same object every time."""
    until = np.concatenate([[0.0], np.cumsum(prices)])
    paid = (until[priced.spans[:, 1]] - until[priced.spans[:, 0]]).tolist()
    made: dict[object, Floats] = {}
    tables = []
    at = 0
    for sheet, plain in zip((*priced.own, *priced.tables), priced.plain, strict=True):
        after = at + len(sheet.spans)
        used = [(price, part) for price, part in zip(paid[at:after], sheet.parts[1:], strict=True) if price]
        tables.append(_at(sheet.parts[0], used, priced, made) if used else plain)
        at = after
    count = len(priced.own)
    for v, able in left.items():
        tables[v] = np.where(able, tables[v], np.inf)
    return tables[:count], tables[count:]


def _at(cost: Floats, used: list[tuple[float, Floats]], priced: Priced, made: dict[object, Floats]) -> Floats:
    key = (id(cost), *((price, id(part)) for price, part in used))
    known = made.get(key)
    if known is None:
        total = cost
        for price, part in used:
            total = total + price * part
        known = made[key] = np.round(total / priced.grid) * priced.grid
    return known


def _plain(sheets: Sequence[Sheet], grid: float) -> list[Floats]:
    """The costs alone, on the grid."""
    made = {id(sheet.parts[0]): sheet.parts[0] for sheet in sheets}
    near = {name: np.round(table / grid) * grid for name, table in made.items()}
    return [near[id(sheet.parts[0])] for sheet in sheets]


def _name(sheet: Sheet, intern: Interner) -> Floats:
    """An array of a sheet's own: tables that differ in memory only are told apart by it."""
    key = ("sheet", *map(id, sheet.parts), sheet.spans)
    return intern.recall(key, lambda: sheet.parts[0].copy())


def _tight(problem: Problem, times: Sequence[int]) -> list[int]:
    """Of some times, those at which the limit can be broken."""
    steps = np.zeros(problem.horizon + 1)
    for usage in (*problem.node_usages, *problem.edge_usages):
        most = float(usage.bytes.max(initial=0.0))
        steps[usage.first] += most
        steps[usage.last] -= most
    most = np.cumsum(steps)
    return [t for t in times if most[t] > problem.usage_limit]


def _walls(problem: Problem) -> tuple[float, float]:
    """A finite cost in place of a forbidden one, and a bound of the cost of any choice, far below it."""
    tables = (*problem.node_costs, *problem.edge_costs)
    highest = {id(table): float(table[np.isfinite(table)].max(initial=0.0)) for table in tables}
    most = sum(highest[id(table)] for table in tables)
    return 1e3 * most + 1.0, most


def _sheets(
    problem: Problem, times: NDArray[np.intp], wall: float, intern: Interner
) -> tuple[list[Sheet], dict[Span, tuple[tuple[Map, Map], Sheet]]]:
    """The tables of all nodes, and of all pairs (u, w) with u < w by classes; parallel edges are added up."""

    def finite(table: Floats) -> Floats:
        one = intern(table)
        return intern.recall(("finite", id(one), wall), lambda: intern(np.minimum(one, wall)))

    nodes: list[dict[Span | None, list[Floats]]] = [{None: [finite(costs)]} for costs in problem.node_costs]
    pairs: dict[Span, dict[Span | None, list[Floats]]] = {}

    def put(edge: int, span: Span | None, table: Floats) -> None:
        u, w = problem.edges[edge]
        one = intern(table)
        if u == w:
            diagonal = intern.recall(("diagonal", id(one)), lambda: intern(np.diagonal(one).copy()))
            nodes[u].setdefault(span, []).append(diagonal)
            return
        if u > w:
            one = intern.recall(("transposed", id(one)), lambda: intern(one.T))
        pairs.setdefault((min(u, w), max(u, w)), {}).setdefault(span, []).append(one)

    for edge, table in enumerate(problem.edge_costs):
        put(edge, None, finite(table))
    for usages, is_node in ((problem.node_usages, True), (problem.edge_usages, False)):
        for usage in usages:
            i, j = (int(at) for at in np.searchsorted(times, (usage.first, usage.last)))
            if i < j and is_node:
                nodes[usage.of].setdefault((i, j), []).append(intern(usage.bytes))
            elif i < j:
                put(usage.of, (i, j), usage.bytes)
    cores: dict[Span, tuple[tuple[Map, Map], Sheet]] = {}
    for (u, w), one in pairs.items():
        maps, core = _core(_sheet(one, intern), intern)
        rows, columns = core.parts[0].shape
        if rows > 1 and columns > 1:
            cores[u, w] = maps, core
            continue
        v, to = (u, maps[0]) if columns == 1 else (w, maps[1])  # it depends on one end only
        for span, part in zip((None, *core.spans), core.parts, strict=True):
            nodes[v].setdefault(span, []).append(intern(part.reshape(-1)[to]))
    return [_sheet(one, intern) for one in nodes], cores


def _sheet(parts: Mapping[Span | None, list[Floats]], intern: Interner) -> Sheet:
    def added(tables: list[Floats]) -> Floats:
        if len(tables) == 1:
            return tables[0]
        return intern.recall(("sum of", *map(id, tables)), lambda: intern(sum(tables[1:], tables[0])))

    spans = tuple(sorted(span for span in parts if span is not None))
    return Sheet((added(parts[None]), *(added(parts[span]) for span in spans)), spans)


def _core(sheet: Sheet, intern: Interner) -> tuple[tuple[Map, Map], Sheet]:
    """A pair's table by classes of strategies, and the classes."""

    def make() -> tuple[tuple[Map, Map], tuple[Floats, ...]]:
        row_of, rows = equal_rows(np.concatenate(sheet.parts, axis=1))
        column_of, columns = equal_rows(np.concatenate([part[rows].T for part in sheet.parts], axis=1))
        grid = np.ix_(rows, columns)
        return (intern(row_of), intern(column_of)), tuple(intern(part[grid]) for part in sheet.parts)

    maps, parts = intern.recall(("core", *map(id, sheet.parts)), make)
    return maps, Sheet(parts, sheet.spans)
