"""Minimising a network whose elimination is too large as it stands: bound, prune, eliminate what is left.

    1  fold nodes of degree 2 or less; if the rest is cheap to eliminate, be done    planner.solvers.folding
       (what is cheap is counted without repeats: a train step of any depth over few strategies is)
    2  bound by message passing, with the excess over it of every strategy          planner.solvers.bounds
    3  keep the strategies with excess_v[a] <= d, eliminate exactly: a choice of value V
    4  a better choice than V may use only strategies with excess <= V - bound. So if V - bound <= d the
       choice is optimal; if not, go to 3 with a larger d, at most V - bound, which settles it
    5  where the tables of that are too large, start again from 1 on the strategies that are left; they are
       fewer, so the folds reach further and the bound is tighter

Every choice that was dropped on the way has a value of at least V, which makes min(V, bound of what is left)
a bound of the whole.
"""

import dataclasses
import time

import numpy as np
from numpy.typing import NDArray

from planner.solvers.bounds import Messages, walk
from planner.solvers.elimination import LARGEST_TABLE, TooLarge, eliminate, simple_bound
from planner.solvers.folding import FOLD_ENTRIES, Folded, fold, unfold
from planner.solvers.interning import Interner
from planner.solvers.minplus import INTERRUPTED, OutOfTime, why
from planner.solvers.network import Network, restricted, value_of
from planner.solvers.orders import Order, best_order

WALKS = 60  # at most, on each level
STALLED = 1e-4, 1e-7  # a walk that raises the bound by less, relatively, is the last before the next try
NARROW = 1e-9  # the first d, relative to the bound
WIDER = 8.0  # from one d to the next
AT_ONCE, AT_ONCE_PER_NODE = 2e6, 1e4  # entries of an elimination that costs less than a bound, and one order
QUICK, THOROUGH = 5e7, 2e9  # entries of an elimination that is tried, and of one that settles it
LEVELS = 4


@dataclasses.dataclass(frozen=True)
class Minimum:
    """A choice of a network, its value and a proven lower bound of the minimum. cut: why the search was cut
    short, '' if it was not. order: of the elimination that was cheap enough to be done at once, if it was."""

    choice: tuple[int, ...]
    value: float
    bound: float
    cut: str = ""
    order: Order | None = None

    @property
    def complete(self) -> bool:
        """Whether the search came to its end."""
        return not self.cut


def minimise(
    network: Network,
    intern: Interner,
    *,
    start: tuple[int, ...] | None = None,
    order: Order | None = None,
    deadline: float = np.inf,
) -> Minimum:
    """The best choice found and its bound; equal where the optimum is proven. start: one to begin with.
    order: that of a network with the same pairs, at other prices, which is tried first."""
    first = start or tuple(int(costs.argmin()) for costs in network.unary)
    best = Minimum(first, value_of(network, first), simple_bound(network))
    if order is not None:
        try:
            found = eliminate(network, order, intern, most=_at_once(network), deadline=deadline)
            return Minimum(found.choice, found.value, found.value, order=order)
        except TooLarge:  # these prices tell more strategies apart
            pass
        except (OutOfTime, KeyboardInterrupt) as error:
            return dataclasses.replace(best, cut=why(error))
    return _level(_Search(intern, deadline), network, best, 0)


def unless_interrupted(found: Minimum) -> Minimum:
    """The same, for those who have nothing to do with half a search: raises KeyboardInterrupt again."""
    if found.cut == INTERRUPTED:
        raise KeyboardInterrupt
    return found


def _at_once(network: Network) -> float:
    return max(AT_ONCE, AT_ONCE_PER_NODE * sum(len(costs) > 1 for costs in network.unary))


@dataclasses.dataclass(frozen=True)
class _Search:
    intern: Interner
    deadline: float


def _level(search: _Search, network: Network, best: Minimum, level: int) -> Minimum:
    """Steps 1 to 5 on one network; what comes back is no worse than `best`."""
    try:
        folded = fold(network, search.intern, entries=FOLD_ENTRIES * WIDER**level, deadline=search.deadline)
    except (OutOfTime, KeyboardInterrupt) as error:
        return dataclasses.replace(best, cut=why(error))
    small = folded.network
    inner = tuple(c if len(costs) > 1 else 0 for c, costs in zip(best.choice, small.unary, strict=True))
    found = Minimum(inner, value_of(small, inner), max(best.bound, simple_bound(small)))
    if not np.isfinite(found.bound):  # every strategy of some node is forbidden
        return _unfolded(folded, found, network, best)
    try:
        enough = _at_once(small)
        order = best_order(small, search.intern, most=enough, enough=enough, deadline=search.deadline)
        if order is not None:
            done = eliminate(small, order, search.intern, deadline=search.deadline)
            at_once = Minimum(done.choice, done.value, done.value, order=_after(folded, order))
            return _unfolded(folded, at_once, network, best)
    except (OutOfTime, KeyboardInterrupt) as error:
        return _unfolded(folded, dataclasses.replace(found, cut=why(error)), network, best)
    state = Messages(small, search.intern)
    try:
        found = _settle(search, small, state, found, level)
    except (OutOfTime, KeyboardInterrupt) as error:
        found = dataclasses.replace(found, bound=max(found.bound, state.bound), cut=why(error))
    return _unfolded(folded, found, network, best)


def _unfolded(folded: Folded, found: Minimum, network: Network, best: Minimum) -> Minimum:
    choice = unfold(folded, found.choice)
    value = value_of(network, choice)
    if value > best.value:
        choice, value = best.choice, best.value
    return dataclasses.replace(found, choice=choice, value=value, bound=min(found.bound, value))


def _after(folded: Folded, order: Order) -> Order:
    """The order of the whole network: first what was folded."""
    gone = [bucket.node for bucket in folded.buckets]
    rest = set(order.nodes).difference(gone)
    return dataclasses.replace(order, nodes=(*gone, *(v for v in order.nodes if v in rest)))


def _settle(search: _Search, small: Network, state: Messages, found: Minimum, level: int) -> Minimum:
    for stalled in STALLED:
        gain = _tighten(state, stalled, search.deadline)
        found = dataclasses.replace(found, bound=max(found.bound, state.bound))
        found, proven = _widened(search, small, state, found, max(NARROW * abs(found.bound), gain))
        if proven:
            return found
    kept = _near(state, found.choice, _gap(found, state))
    part = restricted(small, kept, search.intern)
    tried = _eliminated(search, part, THOROUGH)
    if tried is not None:
        found = _better(small, kept, tried, found)
        return dataclasses.replace(found, bound=found.value)
    if level + 1 == LEVELS:
        return found
    place = tuple(int(np.searchsorted(k, c)) for k, c in zip(kept, found.choice, strict=True))
    below = _level(search, part, Minimum(place, value_of(part, place), found.bound), level + 1)
    lifted = _better(small, kept, below.choice, found)
    return dataclasses.replace(lifted, bound=min(lifted.value, max(found.bound, below.bound)), cut=below.cut)


def _widened(
    search: _Search, small: Network, state: Messages, found: Minimum, width: float
) -> tuple[Minimum, bool]:
    """Eliminates what is within `width` of the bound, then within more, until that is the optimum, which is
    true, or takes too much, false."""
    while True:
        kept = _near(state, found.choice, width)
        tried = _eliminated(search, restricted(small, kept, search.intern), QUICK)
        if tried is None:
            return found, False
        found = _better(small, kept, tried, found)
        if found.value - state.base <= width or sum(map(len, kept)) == sum(small.sizes):
            return dataclasses.replace(found, bound=found.value), True
        width = min(WIDER * width, _gap(found, state))


def _gap(found: Minimum, state: Messages) -> float:
    """What excesses are held against, a little wider, for the rounding of the messages' sums."""
    return (found.value - state.base) + NARROW * abs(state.base)


def _tighten(state: Messages, stalled: float, deadline: float) -> float:
    """Walks until one gains no more than `stalled` of the bound; what it gained."""
    gain = 0.0
    for _ in range(WALKS):
        before = state.bound
        walk(state)
        gain = state.bound - before
        if time.monotonic() > deadline:
            raise OutOfTime
        if gain <= stalled * abs(state.bound):
            break
    return gain


def _near(state: Messages, choice: tuple[int, ...], width: float) -> list[NDArray[np.intp]]:
    """The strategies of excess up to `width`, and those of `choice`."""
    kept = []
    for excess, c in zip(state.excess, choice, strict=True):
        near = excess <= width
        near[c] = True
        kept.append(np.flatnonzero(near))
    return kept


def _eliminated(search: _Search, part: Network, entries: float) -> tuple[int, ...] | None:
    """The optimum of a network, None if that takes more than `entries`."""
    folded = fold(part, search.intern, entries=entries, deadline=search.deadline)
    order = best_order(folded.network, search.intern, most=entries, enough=entries, deadline=search.deadline)
    if order is None or order.largest > LARGEST_TABLE:
        return None
    found = eliminate(folded.network, order, search.intern, deadline=search.deadline)
    return unfold(folded, found.choice)


def _better(small: Network, kept: list[NDArray[np.intp]], tried: tuple[int, ...], found: Minimum) -> Minimum:
    choice = tuple(int(k[c]) for k, c in zip(kept, tried, strict=True))
    value = value_of(small, choice)
    return dataclasses.replace(found, choice=choice, value=value) if value < found.value else found
