"""Branch and bound within memory: what prices leave open is split, and each half gets prices of its own.

    part      the choices that use only some strategies of some nodes, with prices and the bound L there
    raise     prices climb by cutting planes (`planner.solvers.planes`); L is exact by elimination
              (`planner.solvers.passes`), or, where that is too much, bounded by messages that stay from one
              price to the next (`planner.solvers.walks`)
    split     of the choices that the planes at the top mix, some hold too much and some too little; the node
              whose priced memory they disagree about most is split, into the strategies that hold more than
              their mean and those that hold less
    prune     parts whose bound is no less than the best choice that fits

Every choice met gives a plane to each part it lies in, and what it has that saves cost and fits is taken by
the best one (`planner.solvers.repair`). The part of the lowest bound is split first, so that this is a bound
of the whole at any time.
"""

import dataclasses
import heapq
import itertools
import time
from collections.abc import Mapping

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.interning import Interner
from planner.solvers.ledger import Seen
from planner.solvers.minplus import OutOfTime
from planner.solvers.passes import Pass, layout_of, lowest
from planner.solvers.planes import CLOSE, Planes, add, inside, top
from planner.solvers.priced import Allowed, Priced
from planner.solvers.record import ROUNDING, Record, note
from planner.solvers.repair import descended, relinked, rescued

FIRST_BOX, LAST_BOX, GROWTH = 0.1, 1e6, 32.0  # the highest price, as `planes.top` takes it
INWARD = 0.5  # how far the next prices are moved to the best ones
ROOT_ROUNDS, ROUNDS = 60, 14  # of prices, for the whole and for a part
EARLY = 0.1  # of the gap: a part is split when prices cannot raise its bound by more
STALE = 6  # rounds in a row that all together raise it by less, after which it is split too
MOST = 1e7  # entries of an elimination at every price
CEILING = 64.0  # times the highest cost of a choice: sums are exact up to this
LOADING = 0.7  # seconds that it takes to load what was compiled; compiling it once takes two more
WALKS, ENTRIES = (3, 6), 1e7  # at one price, at least and at most, and table entries of all of them


@dataclasses.dataclass(frozen=True)
class Part:
    """left: the strategies that may be used, of nodes that were split. prices: those of `bound`, shape
    (times,). box: the highest price tried. weights: of the choices met, at the top of the planes. messages:
    those of `bound`, where it is by messages."""

    left: Mapping[int, Allowed]
    prices: Floats
    bound: float
    box: float
    weights: Floats
    messages: Floats | None = None


class Tree:
    """The search of one problem: its tables, how they are minimised, and the planes of all choices met."""

    def __init__(self, record: Record, deadline: float) -> None:
        allowed = [one for one in record.seen if np.isfinite(one.cost)]
        self.record, self.problem, intern = record, record.problem, Interner()
        self.priced = Priced(self.problem, CEILING * max(one.cost for one in allowed), intern)
        self.layout = layout_of(self.priced, intern, MOST, deadline)
        self.walks = None
        if self.layout is None:
            if time.monotonic() + LOADING > deadline:
                raise OutOfTime
            from planner.solvers.walks import Walks  # which loads numba

            self.walks = Walks(self.priced)
        unit = max(one.peak for one in allowed) or 1.0
        self.planes = Planes(
            len(self.problem.node_costs), self.problem.usage_limit, unit, len(self.priced.times)
        )
        for one in allowed:
            _meet(self, one)

    @property
    def goal(self) -> float:
        """A bound from which on a part has nothing better, but for rounding: no choice costs more than the
        most."""
        best = self.record.best
        return self.priced.most if best is None else best.cost * (1.0 - ROUNDING / 2)


def branch(record: Record, small: float, deadline: float) -> str:
    """Narrows the gap of a record, with some choice met that is allowed, to `small`; why that was cut short,
    or ''."""
    try:
        tree = Tree(record, deadline)
        root = _raised(tree, _root(tree, np.zeros(len(tree.priced.times))), ROOT_ROUNDS, small, deadline)
        _grow(tree, root, small, deadline)
    except OutOfTime:
        return "the time was up"
    return ""


def _root(tree: Tree, prices: Floats) -> Part:
    return Part({}, prices, -np.inf, FIRST_BOX, np.zeros(0))


def _grow(tree: Tree, root: Part, small: float, deadline: float) -> None:
    record, counter = tree.record, itertools.count()
    heap = [(root.bound, next(counter), root)]
    while heap:
        bound, _, part = heapq.heappop(heap)
        record.bound = max(record.bound, min(bound, tree.goal))
        if record.gap <= small:
            return
        for left in _halves(tree, part):
            half = dataclasses.replace(part, left=left)
            half = _raised(tree, half, ROUNDS, small, deadline)
            if half.bound < tree.goal:
                heapq.heappush(heap, (half.bound, next(counter), half))
    if record.best is not None:
        record.bound = max(record.bound, tree.goal)
    else:
        record.floor = np.inf


def _raised(tree: Tree, part: Part, rounds: int, small: float, deadline: float) -> Part:
    """The part at the best prices found."""
    record, at_root = tree.record, not part.left
    point, bound, highest, box, weights = part.prices, -np.inf, part.prices, part.box, np.zeros(0)
    messages, level, stale = _resumed(tree, part), -np.inf, 0
    for _ in range(rounds):
        value, peak = _evaluate(tree, point, part.left, deadline)
        if value > bound:
            bound, highest, messages = value, point, _messages(tree)
        if at_root:
            record.bound = max(record.bound, min(bound, tree.goal))
        which = inside(tree.planes, part.left)
        if max(bound, part.bound) >= tree.goal or (at_root and record.gap <= small) or not len(which):
            break
        ahead = top(tree.planes, which, box)
        weights = ahead.weights
        if ahead.at_edge and peak > tree.problem.usage_limit:
            box = min(GROWTH * box, LAST_BOX)
        worth = max(CLOSE * abs(bound), EARLY * (tree.goal - bound))
        if ahead.height - bound <= worth and (not ahead.at_edge or box == LAST_BOX):
            break
        level, stale = (bound, 0) if bound >= level + worth else (level, stale + 1)
        if stale > STALE and record.best is not None:
            break
        inward = INWARD if any(tree.planes.fits[k] for k in which) else 0.0
        point = inward * highest + (1.0 - inward) * ahead.prices
    return Part(part.left, highest, max(bound, part.bound), box, weights, messages)


def _resumed(tree: Tree, part: Part) -> Floats | None:
    """The messages of a part, taken up again."""
    if tree.walks is not None and part.messages is not None:
        tree.walks.messages[:] = part.messages
    return part.messages


def _messages(tree: Tree) -> Floats | None:
    """A copy of the messages as they are now."""
    return None if tree.walks is None else tree.walks.messages.copy()


def _evaluate(
    tree: Tree, prices: Floats, left: Mapping[int, Allowed], deadline: float
) -> tuple[float, float]:
    """L of a part at prices, or less, and the peak of a choice that is at least close to it."""
    made = _minimum(tree, prices, left, deadline)
    paid = tree.problem.usage_limit * float(prices.sum())
    record = tree.record
    seen = note(record, made.choice)
    _meet(tree, seen)
    _better(tree, seen, deadline)
    low = made.value - made.rounding - paid
    return low if low <= tree.priced.most else np.inf, seen.peak


def _better(tree: Tree, seen: Seen, deadline: float) -> None:
    """Betters the best choice by what a cheaper one has."""
    record, best = tree.record, tree.record.best
    if best is None or seen.cost > best.cost:
        return
    given = record.problem, record.ties
    made = [relinked(*given, best, seen), rescued(*given, seen, best)]
    for choice in made:
        if choice != best.choice:
            _meet(tree, note(record, choice))
    while record.best is not best and record.best is not None:
        best = record.best
        choice = descended(*given, best, deadline)
        if choice != best.choice:
            _meet(tree, note(record, choice))


def _minimum(tree: Tree, prices: Floats, left: Mapping[int, Allowed], deadline: float) -> Pass:
    if tree.layout is not None:
        return lowest(tree.layout, prices, left, deadline)
    from planner.solvers.walks import walked

    assert tree.walks is not None
    count = int(np.clip(ENTRIES / max(tree.walks.arrays.tables.size, 1), *WALKS))
    return walked(tree.walks, prices, left, count, deadline)


def _meet(tree: Tree, one: Seen) -> None:
    """Gives the planes a choice, if it is allowed."""
    if np.isfinite(one.cost):
        add(tree.planes, one.choice, one.cost, one.usage[tree.priced.times])


def _halves(tree: Tree, part: Part) -> list[dict[int, Allowed]]:
    """The two sets of strategies that a part is split into; none if it is a single choice."""
    which = np.flatnonzero(part.weights > CLOSE)
    choices = tree.planes.choices[which]
    share = part.weights[which] / max(part.weights[which].sum(), CLOSE)
    best, most, split = -1, 0.0, np.zeros(0, dtype=bool)
    for v in np.flatnonzero((choices != choices[:1]).any(axis=0)):
        held = _held(tree, int(v), part.prices)
        mean = float(share @ held[choices[:, v]])
        apart = float(share @ np.abs(held[choices[:, v]] - mean))
        able = part.left.get(int(v), np.ones(len(held), dtype=bool))
        more = able & (held > mean)
        if apart > most and more.any() and (more != able).any():
            best, most, split = int(v), apart, more
    if best < 0:
        best, split = _any(tree, part)
    if best < 0:
        return []
    able = part.left.get(best, np.ones(len(split), dtype=bool))
    return [{**part.left, best: half} for half in (able & split, able & ~split)]


def _any(tree: Tree, part: Part) -> tuple[int, Allowed]:
    """A split of any node that has several strategies left, where memory tells nothing: of those in which the
    choices at the top differ, the first, or else of the most strategies."""
    which = np.flatnonzero(part.weights > CLOSE)
    choices = tree.planes.choices[which]
    differ = np.flatnonzero((choices != choices[:1]).any(axis=0))
    if len(differ):
        v = int(differ[0])
        return v, np.arange(len(tree.problem.node_costs[v])) == choices[0, v]
    every = enumerate(tree.problem.node_costs)
    able = [part.left.get(v, np.ones(len(costs), dtype=bool)) for v, costs in every]
    v = int(np.argmax([one.sum() for one in able]))
    if able[v].sum() < 2:
        return -1, able[v]
    return v, np.cumsum(able[v]) <= able[v].sum() // 2


def _held(tree: Tree, v: int, prices: Floats) -> Floats:
    """What each strategy of a node pays for memory."""
    until = np.concatenate([[0.0], np.cumsum(prices)])
    sheet = tree.priced.own[v]
    paid = np.zeros(len(sheet.parts[0]))
    for bytes_, (i, j) in zip(sheet.parts[1:], sheet.spans, strict=True):
        paid += (until[j] - until[i]) * bytes_
    return paid
