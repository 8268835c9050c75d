"""Orders in which nodes are eliminated, and what each would cost.

Eliminating v joins all its neighbours into a clique; the table of that step has prod(classes of clique and
v) entries. Finding the best order is NP-hard; three greedy rules cover what train steps look like:

    degree   fewest neighbours first: PaSE's GENERATESEQ (IPDPS 2021, section III, figure 3)
    weight   smallest table first, in classes of strategies
    fill     fewest new edges first
"""

import dataclasses
import heapq
import math
from collections.abc import Iterable, Sequence

from planner.solvers.factors import Map, meet
from planner.solvers.interning import Interner
from planner.solvers.network import Network

RULES = ("degree", "weight", "fill")
HUB = 32  # above so many neighbours the new edges are bounded by their number, not counted

Shape = dict[int, Map]  # a factor without its table: the classes of each node it names


@dataclasses.dataclass(frozen=True)
class Order:
    """nodes: in the order of elimination. entries: of all tables together; largest: entries of the largest
    table that is kept, the one without the eliminated node. Repeats are counted."""

    nodes: tuple[int, ...]
    entries: float
    largest: float


def best_order(
    network: Network, intern: Interner, rules: Iterable[str] = RULES, *, most: float = math.inf
) -> Order | None:
    """The cheapest of the greedy orders; ties go to the earlier rule. None if all are over `most`."""
    best: Order | None = None
    for rule in rules:
        order = greedy_order(network, intern, rule, most=most if best is None else best.entries)
        if order is not None and (best is None or order.entries < best.entries):
            best = order
    return best


def greedy_order(network: Network, intern: Interner, rule: str, *, most: float = math.inf) -> Order | None:
    """The greedy order by one of RULES; ties go to the lower node. None if it takes over `most` entries."""
    shapes: list[dict[tuple[int, ...], Shape]] = [{} for _ in network.unary]
    for pair, factor in network.pairs.items():
        for v in pair:
            shapes[v][pair] = dict(zip(pair, factor.maps, strict=True))
    heap = [(_urgency(v, shapes, rule, intern), v) for v in range(len(shapes))]
    current = {v: urgency for urgency, v in heap}
    heapq.heapify(heap)
    nodes: list[int] = []
    entries = largest = 0.0
    while heap:
        urgency, v = heapq.heappop(heap)
        if current.get(v) != urgency:
            continue
        del current[v]
        nodes.append(v)
        met = _clique(v, shapes, intern)
        size = math.prod((float(_count(one)) for one in met.values()), start=1.0)
        entries += size
        if entries > most:
            return None
        largest = max(largest, size / _count(met[v]) if v in met else 1.0)
        _replace(v, met, shapes, intern)
        for w in met:
            if w != v:
                current[w] = _urgency(w, shapes, rule, intern)
                heapq.heappush(heap, (current[w], w))
    return Order(tuple(nodes), entries, largest)


def _clique(v: int, shapes: Sequence[dict[tuple[int, ...], Shape]], intern: Interner) -> Shape:
    maps: dict[int, dict[int, Map]] = {}
    for scope in sorted(shapes[v]):
        for w, one in shapes[v][scope].items():
            maps.setdefault(w, {})[id(one)] = one
    return {w: meet(list(ones.values()), intern)[0] for w, ones in sorted(maps.items())}


def _replace(v: int, met: Shape, shapes: Sequence[dict[tuple[int, ...], Shape]], intern: Interner) -> None:
    for scope in list(shapes[v]):
        for w in scope:
            shapes[w].pop(scope, None)
    scope = tuple(w for w in met if w != v)
    if len(scope) < 2:
        return
    shape = {w: met[w] for w in scope}
    known = shapes[scope[0]].get(scope)
    if known is not None:
        shape = {w: meet([known[w], shape[w]], intern)[0] for w in scope}
    for w in scope:
        shapes[w][scope] = shape


def _urgency(v: int, shapes: Sequence[dict[tuple[int, ...], Shape]], rule: str, intern: Interner) -> float:
    if rule == "weight":
        return sum(math.log2(_count(one)) for one in _clique(v, shapes, intern).values())
    others = _others(v, shapes)
    if rule == "degree":
        return len(others)
    if len(others) > HUB:
        return len(others) * (len(others) - 1) / 2
    return sum(len(others) - 1 - len(others & _others(w, shapes)) for w in others) / 2


def _others(v: int, shapes: Sequence[dict[tuple[int, ...], Shape]]) -> set[int]:
    return {w for scope in shapes[v] for w in scope} - {v}


def _count(classes: Map) -> int:
    return int(classes.max()) + 1
