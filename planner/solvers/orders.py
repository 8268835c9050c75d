"""Orders in which nodes are eliminated, and what each would cost.

Eliminating v joins all its neighbours into a clique; the table of that step has prod(classes of clique and
v) entries. Finding the best order is NP-hard; three greedy rules cover what train steps look like:

    degree   fewest neighbours first: PaSE's GENERATESEQ (IPDPS 2021, section III, figure 3)
    fill     fewest new edges first
    weight   smallest table first, in classes of strategies

Identical layers are worked out once (`planner.solvers.elimination`), so an order costs what its *distinct*
steps compute. Those are told apart by numbers: two tables have one number if they are one object, or come of
steps with the same tables, by number, in the same layout.
"""

import dataclasses
import heapq
import math
import time
from collections.abc import Iterable

from planner.solvers.factors import Map, count, meet
from planner.solvers.interning import Interner
from planner.solvers.minplus import OutOfTime
from planner.solvers.network import Network

RULES = ("degree", "fill", "weight")  # the quickest first
HUB = 32  # above so many neighbours the new edges are bounded by their number, not counted

Shape = dict[int, Map]  # a factor without its table: the classes of each node it names, nodes ascending


@dataclasses.dataclass(frozen=True)
class Order:
    """nodes: in the order of elimination. entries: of all tables together; fresh: without repeats; largest:
    entries of the largest table that is kept, the one without the eliminated node."""

    nodes: tuple[int, ...]
    entries: float
    fresh: float
    largest: float


class _Shapes:
    """A network without its tables while nodes are taken out of it. of_node[v]: the factors that name v, by
    scope, each with the number of its table; unary[v]: the number of v's own; near[v]: its neighbours."""

    def __init__(self, network: Network, intern: Interner) -> None:
        self.intern = intern
        self.numbers: dict[object, int] = {}
        self.unary = [self.number(("table", id(costs))) for costs in network.unary]
        self.of_node: list[dict[tuple[int, ...], tuple[int, Shape]]] = [{} for _ in network.unary]
        self.near: list[set[int]] = [set() for _ in network.unary]
        for pair, factor in network.pairs.items():
            shape = self.number(("table", id(factor.table))), dict(zip(pair, factor.maps, strict=True))
            for v in pair:
                self.of_node[v][pair] = shape
                self.near[v].update(pair)
                self.near[v].discard(v)

    def number(self, key: object) -> int:
        """The number of a table, the same for the same key."""
        return self.numbers.setdefault(key, len(self.numbers))


def best_order(
    network: Network,
    intern: Interner,
    rules: Iterable[str] = RULES,
    *,
    most: float = math.inf,
    enough: float = 0.0,
    deadline: float = math.inf,
) -> Order | None:
    """The cheapest of the greedy orders; ties go to the earlier rule. None if all compute over `most`
    entries; no rule is tried after one that computes at most `enough`. Raises OutOfTime when
    time.monotonic() passes `deadline`."""
    best: Order | None = None
    for rule in rules:
        bar = most if best is None else best.fresh
        order = greedy_order(network, intern, rule, most=bar, deadline=deadline)
        if order is not None and (best is None or order.fresh < best.fresh):
            best = order
        if best is not None and best.fresh <= enough:
            break
    return best


def greedy_order(
    network: Network,
    intern: Interner,
    rule: str,
    *,
    most: float = math.inf,
    deadline: float = math.inf,
) -> Order | None:
    """The greedy order by one of RULES; ties go to the lower node. None if it computes over `most`. Raises
    OutOfTime when time.monotonic() passes `deadline`."""
    shapes = _Shapes(network, intern)
    current = {v: _urgency(v, shapes, rule) for v in range(len(network.unary))}
    heap = [(urgency, v) for v, urgency in current.items()]
    heapq.heapify(heap)
    nodes: list[int] = []
    entries = fresh = largest = 0.0
    while heap:
        urgency, v = heapq.heappop(heap)
        if current.get(v) != urgency:
            continue
        if time.monotonic() > deadline:
            raise OutOfTime
        del current[v]
        nodes.append(v)
        met = _clique(v, shapes)
        size = math.prod((float(count(one, intern)) for one in met.values()), start=1.0)
        entries += size
        largest = max(largest, size / count(met[v], intern) if v in met else 1.0)
        if _replace(v, met, shapes):
            fresh += size
            if fresh > most:
                return None
        for w in met:
            if w != v:
                current[w] = _urgency(w, shapes, rule)
                heapq.heappush(heap, (current[w], w))
    return Order(tuple(nodes), entries, fresh, largest)


def _clique(v: int, shapes: _Shapes) -> Shape:
    maps: dict[int, dict[int, Map]] = {}
    for scope in sorted(shapes.of_node[v]):
        for w, one in shapes.of_node[v][scope][1].items():
            maps.setdefault(w, {})[id(one)] = one
    return {w: meet(list(ones.values()), shapes.intern)[0] for w, ones in sorted(maps.items())}


def _replace(v: int, met: Shape, shapes: _Shapes) -> bool:
    """Takes v out; whether that is a step that was not met before."""
    of_node = shapes.of_node
    scope = tuple(w for w in met if w != v)
    place = {w: axis for axis, w in enumerate((v, *scope))}
    step: list[object] = ["step", shapes.unary[v]]
    for of in sorted(of_node[v]):
        number, shape = of_node[v][of]
        step.append((number, *((place[w], id(one)) for w, one in shape.items())))
        for w in of:
            of_node[w].pop(of, None)
    for w in scope:
        shapes.near[w].update(scope)
        shapes.near[w].difference_update((v, w))
    before = len(shapes.numbers)
    made = shapes.number(tuple(step))
    new = len(shapes.numbers) > before
    if len(scope) == 1:
        w = scope[0]
        shapes.unary[w] = shapes.number(("sum", shapes.unary[w], made, id(met[w])))
    elif scope:
        shape = {w: met[w] for w in scope}
        known = of_node[scope[0]].get(scope)
        if known is not None:
            made = shapes.number(
                ("sum", known[0], made, *map(id, known[1].values()), *map(id, shape.values()))
            )
            shape = {w: meet([known[1][w], shape[w]], shapes.intern)[0] for w in scope}
        for w in scope:
            of_node[w][scope] = made, shape
    return new


def _urgency(v: int, shapes: _Shapes, rule: str) -> float:
    if rule == "weight":
        return sum(math.log2(count(one, shapes.intern)) for one in _clique(v, shapes).values())
    near = shapes.near[v]
    if rule == "degree":
        return len(near)
    if len(near) > HUB:
        return len(near) * (len(near) - 1) / 2
    return sum(len(near) - 1 - len(near & shapes.near[w]) for w in near) / 2
