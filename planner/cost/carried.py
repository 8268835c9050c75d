"""Sums that are added up in a loop, and finished once after it.

    carry += finish(sum)  in every iteration     =     carry += sum  in every iteration, then finish(carry)

A compiler that can moves the all-reduce of a loop's sum behind the loop, where the sum is only added to a
carry (XLA's WhileLoopAllReduceCodeMotion, on TPU and GPU): the gradients of micro-batches, and of weights
that a loop over time reads. It moves it out of one loop only, and leaves it where it stands if the sum is
scaled, added to another sum first, or sliced: a gradient that is kept split is scattered in every iteration.
So the price depends on how the sum is made and how the carry is kept, and stands on an edge between the two.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.traffic import Network, Transfer
from planner.graph.coarsen import Coarse, Link
from planner.graph.graph import Graph, Op, repeats_of, runs_outside
from planner.sharding.spec import Spec
from planner.sharding.strategy import ALL_REDUCE, Strategy

_ADDING = frozenset({"add", "add_any"})
_PASSING = frozenset({"convert_element_type", "reshape", "transpose"})


@dataclasses.dataclass(frozen=True)
class Carried:
    """A sum that is only added to a carry. link: to what adds it. runs: of its loop in a step, which is how
    often it is finished where it can be moved."""

    link: Link
    runs: float


def carried_sums(graph: Graph, coarse: Coarse) -> dict[int, Carried]:
    """Node -> how its sum is carried, for those whose sum is only added to the carry of their loop."""
    reads = Counter(value for op in graph.ops for value in op.operands)
    reads.update(leaf.value for leaf in graph.results)
    carries: dict[int | None, Op] = {op.results[0]: op for op in graph.ops if op.primitive == "loop_carry"}
    repeats = repeats_of(graph.ops)
    summed = {
        node.sums[0].value: node.id for node in coarse.nodes if node.kind == "op" and len(node.sums) == 1
    }
    alone = {value: node for value, node in summed.items() if reads[value] == 1}
    links = {(link.maker, link.out): link for link in coarse.links}
    found: dict[int, Carried] = {}
    for op in graph.ops:
        mine = [value for value in op.operands if value in alone]
        if len(mine) != 1:
            continue
        node = alone[mine[0]]
        if op.primitive in _PASSING and reads[op.results[0]] == 1:
            alone[op.results[0]] = node
        elif op.primitive in _ADDING and _adds_to_a_carry(op, mine[0], carries, reads):
            found[node] = Carried(links[node, 0], runs_outside(op, repeats))
    return found


def _adds_to_a_carry(op: Op, term: int, carries: dict[int | None, Op], reads: Counter) -> bool:
    """Whether all that an addition does is to make the next value of a carry from the last one."""
    (other,) = [value for value in op.operands if value != term] or [None]
    carry = carries.get(other)
    return (
        carry is not None
        and carry.region == op.region
        and carry.operands[1] == op.results[0]
        and reads[other] == reads[op.results[0]] == 1
    )


def is_moved(strategy: Strategy, made: Spec, read: Spec) -> bool:
    """Whether a carried sum is finished behind its loop: it is summed whole, and kept as it is made."""
    return made == read and all(place == ALL_REDUCE for place in strategy.finish.values())


def behind(sums: Iterable[Transfer], runs: float) -> tuple[Transfer, ...]:
    """The collectives of a sum that is finished behind its loop."""
    return tuple(dataclasses.replace(one, times=runs) for one in sums)


def carried_costs(
    sums: Sequence[Sequence[Transfer]],
    moved: NDArray[np.bool_],
    runs: float,
    network: Network,
) -> NDArray[np.float64]:
    """Seconds of the sums' collectives, per strategy of the op and of what carries it. moved: `is_moved` of
    the two."""
    inside = np.array([network.price(found) for found in sums])
    outside = np.array([network.price(behind(found, runs)) for found in sums])
    return np.where(moved, outside[:, None], inside[:, None])
