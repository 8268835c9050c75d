"""Orders in which variables are eliminated, and what each would cost.

Eliminating v joins all its neighbours into a clique; the table of that step has prod(K of clique and v)
entries. Finding the best order is NP-hard; three greedy rules cover what train steps look like:

    degree   fewest neighbours first: PaSE's GENERATESEQ (IPDPS 2021, section III, figure 3)
    weight   smallest table first
    fill     fewest new edges first
"""

import dataclasses
import heapq
import math
from collections.abc import Sequence

RULES = ("degree", "weight", "fill")
HUB = 32  # above so many neighbours the new edges are bounded by their number, not counted


@dataclasses.dataclass(frozen=True)
class Order:
    """nodes: in the order of elimination. entries: of all tables together; largest: entries of the largest
    table that is kept, the one without the eliminated node."""

    nodes: tuple[int, ...]
    entries: float
    largest: float


def best_order(near: Sequence[set[int]], sizes: Sequence[int]) -> Order:
    """The cheapest of the greedy orders; ties go to the earlier rule."""
    orders = [greedy_order(near, sizes, rule) for rule in RULES]
    return min(orders, key=lambda order: order.entries)


def greedy_order(near: Sequence[set[int]], sizes: Sequence[int], rule: str) -> Order:
    """The greedy order by one of RULES; ties go to the lower node. O(n d^2 log n) for degrees d."""
    joined = [set(others) for others in near]
    logs = [math.log2(size) for size in sizes]
    heap = [(_urgency(v, joined, logs, rule), v) for v in range(len(joined))]
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
        others = joined[v]
        rest = 2.0 ** sum(logs[w] for w in others)
        entries += rest * sizes[v]
        largest = max(largest, rest)
        for w in others:
            joined[w] |= others
            joined[w] -= {v, w}
        for w in others:
            current[w] = _urgency(w, joined, logs, rule)
            heapq.heappush(heap, (current[w], w))
    return Order(tuple(nodes), entries, largest)


def _urgency(v: int, joined: Sequence[set[int]], logs: Sequence[float], rule: str) -> float:
    others = joined[v]
    if rule == "degree":
        return len(others)
    if rule == "weight":
        return logs[v] + sum(logs[w] for w in sorted(others))
    if len(others) > HUB:
        return len(others) * (len(others) - 1) / 2
    return sum(len(others) - 1 - len(others & joined[w]) for w in others) / 2
