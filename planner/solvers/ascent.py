"""Prices on the memory limit, raised together with messages: a lower bound, and a choice at every step.

    L(prices)  =  min_x  cost(x) + sum_t prices_t (used_t(x) - room_t)            prices >= 0

The minimum over x is bounded by message passing (`planner.solvers.messages`), one walk per step, so that
messages and prices climb at the same time. A step follows the mean of what the last choices used over the
limit,

    mean       =  fading * mean + (1 - fading) * (used(x) - room)
    prices    +=  pace * (target - L) / |mean|^2 * mean,        on times with a price or over the limit

which is the volume algorithm's direction (Barahona and Anbil, Mathematical Programming 87, 2000) with
Polyak's step. After `patience` steps without a higher L it goes back to the best prices and messages at a
lower pace; a spell ends when the pace is too low, and the next one begins from the best at a pace, and with a
memory, of its own: no one setting climbs every network well.
"""

import dataclasses

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.arrays import Arrays
from planner.solvers.messages import priced, shares, walk
from planner.solvers.moves import used_by

LEAST = 1e-4  # of the target: a step never aims at less above the bound
FAR = 0.5  # of the bound: how far the target is above it while no choice that fits is known


@dataclasses.dataclass(frozen=True)
class Spell:
    """How prices climb for a while, see above; the pace is multiplied by `slower` until below `last`."""

    fading: float
    pace: float
    patience: int
    slower: float
    last: float


SPELLS = (
    Spell(0.9, 1.0, 10, 0.5, 0.05),
    Spell(0.7, 0.5, 20, 0.7, 0.02),
    Spell(0.9, 1.0, 20, 0.7, 0.02),
)


class Ascent:
    """bound: the highest L, with its prices and messages (`best`). choice: of the last walk, with what it
    uses, and the `costs` it was made at. spells: ended so far."""

    def __init__(self, arrays: Arrays) -> None:
        count = len(arrays.first) - 1
        self.arrays = arrays
        self.share = shares(arrays)
        self.costs = np.empty_like(arrays.costs)
        self.excess = np.empty_like(arrays.costs)
        self.choice = np.zeros(count, dtype=np.int64)
        self.used = np.zeros_like(arrays.room)
        self.prices = np.zeros_like(arrays.room)
        self.messages = np.zeros(arrays.messages)
        self.mean: Floats | None = None
        self.bound = -np.inf
        self.best = self.prices.copy(), self.messages.copy()
        self.spells, self.stale, self.pace = 0, 0, SPELLS[0].pace

    @property
    def until(self) -> Floats:
        """The price of a byte held at all times before t, at the best prices, shape (times + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.best[0])])


def step(state: Ascent, target: float) -> None:
    """One walk, and one move of the prices. target: the least cost known of a choice that fits, or inf."""
    spell = SPELLS[state.spells % len(SPELLS)]
    bound = _walked(state)
    over = state.used - state.arrays.room
    state.mean = over if state.mean is None else spell.fading * state.mean + (1.0 - spell.fading) * over
    if bound > state.bound:
        state.bound, state.stale = bound, 0
        state.best = state.prices.copy(), state.messages.copy()
    else:
        state.stale += 1
    if state.stale > spell.patience:
        _slow_down(state, spell)
        return
    mean = np.where((state.mean < 0.0) & (state.prices <= 0.0), 0.0, state.mean)
    norm = float(mean @ mean)
    if norm > 0.0:
        goal = target if np.isfinite(target) else bound + FAR * abs(bound)
        rise = max(min(goal - bound, abs(bound)), LEAST * abs(goal))
        state.prices = np.maximum(state.prices + state.pace * rise / norm * mean, 0.0)


def settle(state: Ascent, walks: int) -> float:
    """Walks at the best prices; a bound such that every choice that fits and has x_v = a costs at least this
    and excess[v][a] together."""
    state.prices, state.messages = state.best[0].copy(), state.best[1].copy()
    before = state.bound
    for _ in range(walks):
        before = state.bound
        state.bound = max(state.bound, _walked(state))
    state.best = state.prices.copy(), state.messages.copy()
    return before


def _walked(state: Ascent) -> float:
    priced(state.arrays, state.prices, state.costs)
    bound = walk(state.arrays, state.costs, state.share, state.messages, state.excess, state.choice)
    state.used = used_by(state.arrays, state.choice)
    return bound - float(state.prices @ state.arrays.room)


def _slow_down(state: Ascent, spell: Spell) -> None:
    state.prices, state.messages = state.best[0].copy(), state.best[1].copy()
    state.mean, state.stale = None, 0
    state.pace *= spell.slower
    if state.pace < spell.last:
        state.spells += 1
        state.pace = SPELLS[state.spells % len(SPELLS)].pace
