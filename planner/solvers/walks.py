"""Bounds at prices by message passing, for networks that are too wide to be eliminated at every price.

The compiled walks of `planner.solvers.messages` on the tables of `planner.solvers.priced`: these change with
the prices, and the messages stay, as any messages give a bound. The choice that is read off them may be far
from the minimum, and its plane far above it: some forests of it are optimised (`planner.solvers.forest`).
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.arrays import Arrays
from planner.solvers.forest import replant
from planner.solvers.messages import shares, walk
from planner.solvers.minplus import OutOfTime
from planner.solvers.passes import Pass
from planner.solvers.priced import Allowed, Priced, tables_at

FORESTS = 3  # of a choice, re-optimised at each price


class Walks:
    """arrays: without usages, since these are in the tables. places: for each pair, where its table begins,
    and the same table turned. shown: the tables that are in the arrays now. draw: of forests."""

    def __init__(self, priced: Priced) -> None:
        sizes = [len(sheet.parts[0]) for sheet in priced.own]
        self.priced = priced
        self.places: list[tuple[int, int]] = []
        self.shown: list[Floats | None] = [None] * len(priced.tables)
        self.arrays = self._arrays(sizes)
        self.share = shares(self.arrays)
        self.messages = np.zeros(self.arrays.messages)
        self.excess = np.zeros(len(self.arrays.costs))
        self.choice = np.zeros(len(sizes), dtype=np.int64)
        self.draw = np.random.default_rng(0)

    def _arrays(self, sizes: Sequence[int]) -> Arrays:
        rows: list[list[tuple[int, ...]]] = [[] for _ in sizes]
        maps = {id(one): one for factor in self.priced.network.pairs.values() for one in factor.maps}
        ends = np.cumsum([0, *(len(one) for one in maps.values())])
        place = {name: int(end) for name, end in zip(maps, ends[:-1], strict=True)}
        shared: dict[tuple[int, ...], tuple[int, int]] = {}
        size = message = 0
        for factor, sheet in zip(self.priced.network.pairs.values(), self.priced.tables, strict=True):
            (u, w), (height, width) = factor.scope, sheet.parts[0].shape
            key = (id(sheet.parts[0]),) if not sheet.spans else (id(sheet), u, w)
            if key not in shared:
                shared[key] = size, size + height * width
                size += 2 * height * width
            at, turned = shared[key]
            mine, theirs = (place[id(one)] for one in factor.maps)
            self.places.append((at, turned))
            to_u, to_w = message, message + height
            message += height + width
            rows[u].append((w, at, mine, theirs, height, width, to_u, to_w))
            rows[w].append((u, turned, theirs, mine, width, height, to_w, to_u))
        none = np.zeros(0)
        return Arrays(
            first=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            costs=np.zeros(sum(sizes)),
            edge_of=np.cumsum([0, *map(len, rows)]).astype(np.int64),
            edges=np.array([row for of in rows for row in sorted(of)], dtype=np.int64).reshape(-1, 8),
            tables=np.zeros(size),
            classes=np.concatenate([*maps.values(), np.zeros(0)]).astype(np.int64),
            use_of=np.zeros(len(sizes) + 1, dtype=np.int64),
            uses=np.zeros((0, 3), dtype=np.int64),
            bytes=none,
            room=none,
            times=np.zeros(0, dtype=np.int64),
            messages=message,
            most=max(sizes, default=0),
        )


def walked(walks: Walks, prices: Floats, left: Mapping[int, Allowed], count: int, deadline: float) -> Pass:
    """The highest bound of `count` walks at prices, as the value of a Pass whose choice was read off last and
    bettered. Raises OutOfTime after `deadline`."""
    unary, tables = tables_at(walks.priced, prices, left)
    for pair, table in enumerate(tables):
        if walks.shown[pair] is not table:
            at, turned = walks.places[pair]
            walks.arrays.tables[at : at + table.size] = table.ravel()
            walks.arrays.tables[turned : turned + table.size] = table.T.ravel()
            walks.shown[pair] = table
    costs = np.concatenate(unary)
    bound = -np.inf
    for _ in range(count):
        given = (walks.arrays, costs, walks.share, walks.messages, walks.excess, walks.choice)
        bound = max(bound, walk(*given))
        if time.monotonic() > deadline:
            raise OutOfTime
    for _ in range(FORESTS):
        replant(walks.arrays, costs, walks.choice, walks.draw.permutation(len(walks.choice)))
    return Pass(bound, walks.priced.rounding, tuple(walks.choice.tolist()))
