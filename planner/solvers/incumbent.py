"""The best choice that fits, and how it is bettered by others that are good at some prices.

offer    a choice made at priced costs is improved at those costs (`planner.solvers.forest`); the incumbent
         takes over what it can (`planner.solvers.relink`); made to fit, and descended, it may be cheaper
shake    the incumbent's own forests are made anew at the best prices, with some noise
"""

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.arrays import Arrays, Ints
from planner.solvers.forest import replant
from planner.solvers.messages import priced
from planner.solvers.moves import cost_of, descend, ease, used_by
from planner.solvers.relink import relinked, rescued

FORESTS = 2  # that are made anew in a choice that is offered
SWEEPS = 4  # of single nodes
NOISE = 0.02, 0.5  # a shake multiplies the prices by at least one plus or minus the first, at most the second


class Incumbent:
    """choice: the best that fits, None before there is one; used: by it; cost: seconds, inf without one."""

    def __init__(self, arrays: Arrays, draw: np.random.Generator) -> None:
        self.arrays = arrays
        self.draw = draw
        self.choice: Ints | None = None
        self.used = np.zeros_like(arrays.room)
        self.cost = np.inf


def take(known: Incumbent, choice: Ints) -> bool:
    """Takes a choice that fits if it is cheaper; whether it was."""
    used = used_by(known.arrays, choice)
    cost = cost_of(known.arrays, choice)
    if cost >= known.cost or (used > known.arrays.room).any():
        return False
    known.choice, known.used, known.cost = choice, used, cost
    return True


def begin(known: Incumbent) -> None:
    """Takes the choice that each node's least usage makes, summed over time, if that can be made to fit."""
    arrays = known.arrays
    held = np.zeros_like(arrays.costs)
    for v in range(len(arrays.first) - 1):
        for begins, ends, at in arrays.uses[arrays.use_of[v] : arrays.use_of[v + 1]]:
            size = arrays.first[v + 1] - arrays.first[v]
            held[arrays.first[v] : arrays.first[v + 1]] += (ends - begins) * arrays.bytes[at : at + size]
    choice = np.array([part.argmin() for part in np.split(held, arrays.first[1:-1])], dtype=np.int64)
    used = used_by(arrays, choice)
    if ease(arrays, choice, used, SWEEPS):
        descend(arrays, choice, used, SWEEPS)
        take(known, choice)


def offer(known: Incumbent, choice: Ints, costs: Floats, until: Floats) -> None:
    """See above. costs: of all strategies at the prices the choice was made at; until: the price of a byte
    held at all times before t, at the best prices."""
    arrays, mine = known.arrays, choice.copy()
    for _ in range(FORESTS):
        replant(arrays, costs, mine, known.draw.permutation(len(mine)))
    _take_over(known, mine, until)
    used = used_by(arrays, mine)
    good = bool((used <= arrays.room).all())
    if not good and known.choice is not None:
        good = rescued(arrays, mine, used, known.choice)
    if good or ease(arrays, mine, used, SWEEPS):
        descend(arrays, mine, used, SWEEPS)
        take(known, mine)


def shake(known: Incumbent, until: Floats) -> None:
    """See above. until: as in `offer`. Nothing without an incumbent."""
    if known.choice is None:
        return
    arrays = known.arrays
    costs = np.empty_like(arrays.costs)
    priced(arrays, np.diff(until), costs)
    width = np.exp(known.draw.uniform(*np.log(NOISE)))
    factor = 1.0 + width * known.draw.uniform(-1.0, 1.0)
    mine = known.choice.copy()
    for _ in range(FORESTS):
        noisy = arrays.costs + factor * (costs - arrays.costs)
        replant(arrays, noisy, mine, known.draw.permutation(len(mine)))
    _take_over(known, mine, factor * until)


def _take_over(known: Incumbent, other: Ints, until: Floats) -> None:
    if known.choice is None:
        return
    choice, used = known.choice.copy(), known.used.copy()
    if relinked(known.arrays, choice, used, other.copy(), until) > 0.0:
        descend(known.arrays, choice, used, SWEEPS)
        take(known, choice)
