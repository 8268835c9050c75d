"""Moves: which nodes a random walk proposes to change, and to what.

    single   a node at random takes one of its strategies at random: FlexFlow's proposal (Jia et al., MLSys
             2019, section 6), which every state offers as often as its reverse
    block    such a node pulls its surroundings along: neighbour by neighbour, each takes what is cheapest
             beside those that are decided. After each there is another with probability 3/4, as in the
             propagation of FlexFlow's later code. Changing one op alone pays a reshard on every side of it;
             a block pays only at its rim

A block is not proposed as often as its reverse, so a walk with blocks samples no known distribution; it looks
for the minimum, and that is all it is for.
"""

import random
from collections.abc import Callable, Sequence

from planner.cost.problem import Floats
from planner.solvers.evaluator import Near
from planner.solvers.ledger import Changes

CONTINUE = 0.75

Propose = Callable[[Sequence[int], random.Random], Changes]


def single(unary: Sequence[Floats]) -> Propose:
    """Proposes to change one node, uniformly."""
    sizes = [len(costs) for costs in unary]

    def propose(choice: Sequence[int], draw: random.Random) -> Changes:
        del choice
        v = int(draw.random() * len(sizes))
        return {v: int(draw.random() * sizes[v])}

    return propose


def block(unary: Sequence[Floats], near: Sequence[Near]) -> Propose:
    """Proposes to change one node, uniformly, and some around it to what suits them then."""
    start = single(unary)

    def propose(choice: Sequence[int], draw: random.Random) -> Changes:
        changes = dict(start(choice, draw))
        rim = [w for v in changes for w, _ in near[v]]
        while rim and draw.random() < CONTINUE:
            at = int(draw.random() * len(rim))
            rim[at], rim[-1] = rim[-1], rim[at]
            v = rim.pop()
            if v not in changes:
                changes[v] = _cheapest(v, changes, choice, unary, near)
                rim.extend(w for w, _ in near[v] if w not in changes)
        return changes

    return propose


def mixed(one: Propose, other: Propose, part: float) -> Propose:
    """Proposes what `other` does, in that part of the cases, and else what `one` does."""
    return lambda choice, draw: (other if draw.random() < part else one)(choice, draw)


def _cheapest(
    v: int, changes: Changes, choice: Sequence[int], unary: Sequence[Floats], near: Sequence[Near]
) -> int:
    """The strategy of v that costs least beside its neighbours, ties to the lower."""
    costs = unary[v]
    for w, table in near[v]:
        costs = costs + table[:, changes.get(w, choice[w])]
    return int(costs.argmin())
