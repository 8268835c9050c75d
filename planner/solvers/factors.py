"""Factors: tables over some nodes, kept by *classes* of strategies rather than by strategies.

Many strategies of an op treat one operand alike, so the table of that edge has equal rows. A factor stores
the distinct rows only, with a map from strategy to class on each axis. Factors meet in the classes that tell
their strategies apart, no finer; what elimination costs is the number of classes, not of strategies.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Floats
from planner.solvers.interning import Interner

Map = NDArray[np.intp]  # shape (K_v,): the class of each strategy; classes are 0, 1, ... without a hole


@dataclasses.dataclass(frozen=True)
class Factor:
    """table[maps[0][x_scope[0]], maps[1][x_scope[1]], ...]; scope ascends; tables and maps are interned."""

    scope: tuple[int, ...]
    maps: tuple[Map, ...]
    table: Floats


def pair_factor(pair: tuple[int, int], table: Floats, intern: Interner) -> Factor:
    """The factor of an edge, in classes of equal rows and equal columns."""

    def make() -> tuple[tuple[Map, ...], Floats]:
        row_of, rows = equal_rows(table)
        column_of, columns = equal_rows(np.ascontiguousarray(table[rows].T))
        return (intern(row_of), intern(column_of)), intern(table[np.ix_(rows, columns)])

    maps, core = intern.recall(("classes", id(table)), make)
    return Factor(pair, maps, core)


def equal_rows(table: Floats) -> tuple[Map, Map]:
    """The class of every row, numbered as they appear, and the first row of each class."""
    names: dict[bytes, int] = {}
    classes = [names.setdefault(row.tobytes(), len(names)) for row in table]
    return np.array(classes, dtype=np.intp), np.unique(classes, return_index=True)[1]


def count(classes: Map, intern: Interner) -> int:
    """The number of classes of an interned map."""
    return intern.recall(("count", id(classes)), lambda: int(classes.max()) + 1)


def meet(maps: Sequence[Map], intern: Interner) -> tuple[Map, tuple[Map, ...]]:
    """The coarsest classes that refine all `maps`, and for each map the class there of each class here."""
    if len({id(one) for one in maps}) == 1:
        same = intern.recall(("same", id(maps[0])), lambda: intern(np.arange(maps[0].max() + 1)))
        return maps[0], (same,) * len(maps)

    def make() -> tuple[Map, tuple[Map, ...]]:
        code = maps[0]
        for other in maps[1:]:
            code = np.unique(code * (other.max() + 1) + other, return_inverse=True)[1].reshape(-1)
        first = np.unique(code, return_index=True)[1]
        return intern(code), tuple(intern(one[first]) for one in maps)

    return intern.recall(("meet", *map(id, maps)), make)


def spread(factor: Factor, axes: Sequence[int], finer: Sequence[dict[int, Map]]) -> Floats:
    """The factor's table with one axis per node of `axes`, of extent one where it does not name the node.

    finer[axis][id of the factor's map] gives, for each class of that axis, the factor's class."""
    table = factor.table
    for axis, (w, one) in enumerate(zip(factor.scope, factor.maps, strict=True)):
        to = finer[axes.index(w)][id(one)]
        if not (len(to) == table.shape[axis] and np.array_equal(to, np.arange(len(to)))):
            table = table.take(to, axis=axis)
    places = [axes.index(w) for w in factor.scope]
    shape = [1] * len(axes)
    for axis, place in enumerate(places):
        shape[place] = table.shape[axis]
    return np.ascontiguousarray(table.transpose(np.argsort(places))).reshape(shape)


def added(one: Factor, other: Factor, intern: Interner) -> Factor:
    """The sum of two factors of one scope."""

    def make() -> tuple[tuple[Map, ...], Floats]:
        met = [meet(pair, intern) for pair in zip(one.maps, other.maps, strict=True)]
        tables = []
        for which, factor in enumerate((one, other)):
            index = np.ix_(*(to[which] for _, to in met))
            tables.append(factor.table[index])
        return tuple(classes for classes, _ in met), intern(tables[0] + tables[1])

    key = ("added", id(one.table), id(other.table), *map(id, one.maps), *map(id, other.maps))
    maps, table = intern.recall(key, make)
    return Factor(one.scope, maps, table)


def least_per_class(costs: Floats, classes: Map, number: int) -> Floats:
    """The smallest cost among the strategies of each class, shape (number,)."""
    least = np.full(number, np.inf)
    np.minimum.at(least, classes, costs)
    return least


def restricted_factor(factor: Factor, kept: tuple[Map, ...], intern: Interner) -> Factor:
    """The factor with only the strategies kept[axis] (interned) of each axis, classes without any dropped."""

    def make() -> tuple[tuple[Map, ...], Floats]:
        met = [np.unique(one[left], return_inverse=True) for one, left in zip(factor.maps, kept, strict=True)]
        return tuple(intern(to.reshape(-1)) for _, to in met), intern(
            factor.table[np.ix_(*(used for used, _ in met))]
        )

    key = ("restricted", id(factor.table), *map(id, factor.maps), *map(id, kept))
    maps, table = intern.recall(key, make)
    return Factor(factor.scope, maps, table)
