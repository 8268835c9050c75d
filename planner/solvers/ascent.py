"""Prices on the memory limit, raised together with messages: a lower bound, and a choice at every step.

    L(prices)  =  min_x  cost(x) + sum_t prices_t (used_t(x) - room_t)            prices >= 0

The minimum over x is bounded by message passing (`planner.solvers.messages`), one walk per step, so that
messages and prices climb at the same time. A step follows the mean of what the last choices used over the
limit,

    mean       =  fading * mean + (1 - fading) * (used(x) - room)
    prices    +=  pace * (target - L) / |mean|^2 * mean,        on active times with a price or over the limit

which is the volume algorithm's direction (Barahona and Anbil, Mathematical Programming 87, 2000) with
Polyak's step. Neighbouring times are alike, nearly all that is alive at one is at the other, and at the
highest L few have a price: a time becomes active when it is the worst of a stretch in which the mean is over
the limit. Raising all of these takes one step too many prices too high, and hundreds to take them back.

After `patience` steps without a higher L it goes back to the best prices and messages at a lower pace; a
spell ends when the pace is too low, and the next one begins from the best at a pace, and with a memory, of
its own. No one setting climbs every network well, or one network at all times: each is tried, then always
the one that closed most of the gap per step when it was tried last.
"""

import dataclasses

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.arrays import Arrays, Ints
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
    uses, and the `costs` it was made at. active: times that may have a price. spells: ended so far; spell:
    the one that runs, which began at step and bound `begun`; rates[s]: the share of the gap that spell s
    closed per step, inf before it has run, and the number of spells there were by then, negative."""

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
        self.active = np.zeros(len(arrays.room), dtype=bool)
        self.steps, self.spells, self.stale, self.pace = 0, 0, 0, SPELLS[0].pace
        self.spell, self.begun = 0, (0, -np.inf)
        self.rates = [(np.inf, -s) for s in range(len(SPELLS))]

    @property
    def until(self) -> Floats:
        """The price of a byte held at all times before t, at the best prices, shape (times + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.best[0])])


def step(state: Ascent, target: float) -> None:
    """One walk, and one move of the prices. target: the least cost known of a choice that fits, or inf."""
    spell = SPELLS[state.spell]
    bound = _walked(state)
    state.steps += 1
    if state.steps == 1:
        state.begun = state.steps, bound
    over = state.used - state.arrays.room
    state.mean = over if state.mean is None else spell.fading * state.mean + (1.0 - spell.fading) * over
    if bound > state.bound:
        state.bound, state.stale = bound, 0
        state.best = state.prices.copy(), state.messages.copy()
    else:
        state.stale += 1
    if state.stale > spell.patience:
        _slow_down(state, spell, target)
        return
    state.active[worst(state.mean)] = True
    mean = np.where(state.active & ((state.mean > 0.0) | (state.prices > 0.0)), state.mean, 0.0)
    norm = float(mean @ mean)
    if norm > 0.0:
        goal = target if np.isfinite(target) else bound + FAR * abs(bound)
        rise = max(min(goal - bound, abs(bound)), LEAST * abs(goal))
        state.prices = np.maximum(state.prices + state.pace * rise / norm * mean, 0.0)


def worst(over: Floats) -> Ints:
    """The first worst time of each stretch of times in which `over` is above 0."""
    at = np.flatnonzero(over > 0.0)
    if not len(at):
        return at
    begins = np.flatnonzero(np.diff(at, prepend=-2) > 1)
    stretch = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(at)))
    tops = np.flatnonzero(over[at] == np.maximum.reduceat(over[at], begins)[stretch])
    return at[tops[np.unique(stretch[tops], return_index=True)[1]]]


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


def _slow_down(state: Ascent, spell: Spell, target: float) -> None:
    state.prices, state.messages = state.best[0].copy(), state.best[1].copy()
    state.mean, state.stale = None, 0
    state.pace *= spell.slower
    if state.pace < spell.last:
        _next_spell(state, target)


def _next_spell(state: Ascent, target: float) -> None:
    """Ends the spell that runs, and begins the one that promises most, of equals the one that rested most."""
    at, bound = state.begun
    gap = target - bound
    rate = (state.bound - bound) / gap / (state.steps - at) if 0.0 < gap < np.inf else 0.0
    state.spells += 1
    state.rates[state.spell] = rate, -state.spells
    state.spell = state.rates.index(max(state.rates))
    state.begun = state.steps, state.bound
    state.pace = SPELLS[state.spell].pace
