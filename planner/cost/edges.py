"""Tables of what it costs to bring a value from any of some specs to any of others.

A reshard is a short list of *terms*: (kind, axes, fraction of the value). The terms of a pair of specs do not
depend on the value, so they are found once per mesh; a table for a value of some size is then one lookup per
entry:

    cost[i, j] = sum over the terms of (source i, target j) of move(kind, axes, fraction * bytes)
"""

import functools

import numpy as np
from numpy.typing import NDArray

from planner.cost.traffic import Network
from planner.sharding.spec import Spec, pieces, ways

Floats = NDArray[np.float64]
_Specs = tuple[Spec, ...]


class EdgePricer:
    """The edge tables of one mesh."""

    def __init__(self, network: Network) -> None:
        self.network, self.sizes = network, network.sizes
        self.terms: dict[tuple[str, tuple[str, ...], float], int] = {}
        self.of_pair: dict[tuple[Spec, Spec], tuple[int, ...]] = {}
        self.of_moving: dict[tuple[Spec, Spec, int], tuple[int, ...]] = {}
        self.pattern = functools.cache(self._pattern)

    def tables(
        self, sources: _Specs, targets: _Specs, whole: float, repeat: float, row: int = 0
    ) -> tuple[Floats, Floats]:
        """(seconds, bytes of the resharded copy), each of shape (sources, targets), for a value of `whole`
        bytes that is moved `repeat` times a step. row: see `row_of`."""
        pattern, copied = self.pattern(sources, targets)
        move = self.network.move
        seconds = [move(kind, axes, fraction * whole, row)[1] for kind, axes, fraction in self.terms]
        priced = np.array([*seconds, 0.0])  # the last entry stands for no term
        return repeat * priced[pattern].sum(axis=-1), whole * copied

    def _pattern(self, sources: _Specs, targets: _Specs) -> tuple[NDArray[np.int64], Floats]:
        known = self.of_pair
        lists = [[known.get((s, t)) or self._terms(s, t) for t in targets] for s in sources]
        most = max((len(terms) for row in lists for terms in row), default=1)
        padded = [[terms + (-1,) * (most - len(terms)) for terms in row] for row in lists]
        pattern = np.array(padded, dtype=np.int64).reshape(len(sources), len(targets), most)
        differ = np.array([[source != target for target in targets] for source in sources])
        return pattern, differ / np.array([pieces(target, self.sizes) for target in targets])

    def _terms(self, source: Spec, target: Spec) -> tuple[int, ...]:
        """The terms of a pair, at least one. Dims that stay as they are only make the value smaller: leaving
        them out lets many pairs share one answer."""
        mine, theirs, share = [], [], 1
        for s, t in zip(source, target, strict=True):
            if s != t:
                mine.append(s)
                theirs.append(t)
            elif s:
                share *= ways(s, self.sizes)
        key = (tuple(mine), tuple(theirs), share)
        if key not in self.of_moving:
            steps = self.network.reshard(key[0], key[1])
            found = ((step.kind, step.axes, step.fraction / share) for step in steps)
            terms = tuple(self.terms.setdefault(term, len(self.terms)) for term in found)
            self.of_moving[key] = terms or (-1,)
        self.of_pair[source, target] = self.of_moving[key]
        return self.of_moving[key]
