"""Exact minima at many prices: one order of elimination, laid out once.

What the tables of `planner.solvers.priced` have in common at all prices is the order of elimination and how
every table lies in every step of it. A minimum, with some strategies left out, is a pass over the steps
(`planner.solvers.elimination` has the mathematics); steps with equal tables are done once.
"""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.factors import Map, count, meet
from planner.solvers.interning import Interner
from planner.solvers.minplus import OutOfTime, min_plus
from planner.solvers.network import Network
from planner.solvers.orders import best_order
from planner.solvers.priced import Allowed, Priced, tables_at

SMALL = 1 << 14  # entries of a step that is done in one piece


@dataclasses.dataclass(frozen=True)
class _Part:
    """A table in the sum of a step. takes: for each axis the classes to take, None for all as they are; turn:
    the order of its axes there; shape: with one axis for each node of the step; seen: its nodes and maps."""

    slot: int
    takes: tuple[Map | None, ...]
    turn: tuple[int, ...]
    shape: tuple[int, ...]
    seen: tuple[tuple[int, Map], ...]


@dataclasses.dataclass(frozen=True)
class _Step:
    """The elimination of a node. runs: its strategies sorted by class, and where each class begins, None if
    all differ; sizes: classes of it and of its dependent set; out: the slot of its message; layout: the same
    number for steps that do the same with their tables."""

    node: int
    runs: tuple[Map, Map] | None
    parts: tuple[_Part, ...]
    sizes: tuple[int, ...]
    out: int
    layout: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """The steps of an elimination, in order."""

    priced: Priced
    steps: tuple[_Step, ...]


def layout_of(priced: Priced, intern: Interner, most: float) -> Layout | None:
    """The order and the steps; None if a pass would compute over `most` entries."""
    order = best_order(priced.network, intern, most=most, enough=most / 10.0)
    return None if order is None else Layout(priced, _steps(order.nodes, priced.network, intern))


@dataclasses.dataclass(frozen=True)
class Pass:
    """One minimum: its value, by how much the rounding of the tables may have raised it, and its choice."""

    value: float
    rounding: float
    choice: tuple[int, ...]


def lowest(layout: Layout, prices: Floats, left: Mapping[int, Allowed], deadline: float = math.inf) -> Pass:
    """The minimum at prices per byte, shape (len(times),). left: strategies of some nodes that may be used.
    Raises OutOfTime after `deadline`."""
    priced = layout.priced
    unary, slots = tables_at(priced, prices, left)
    slots += [np.zeros(())] * len(layout.steps)
    value = 0.0
    done: dict[object, tuple[Floats, float]] = {}
    for step in layout.steps:
        tables = [slots[part.slot] for part in step.parts]
        key = (step.layout, id(unary[step.node]), *map(id, tables))
        if key not in done:
            if time.monotonic() > deadline:
                raise OutOfTime
            done[key] = _message(step, unary[step.node], tables, deadline)
        slots[step.out], least = done[key]
        value += least
    return Pass(value, priced.rounding, _back(layout, unary, slots))


def _aligned(step: _Step, unary: Floats, tables: Sequence[Floats]) -> tuple[Floats, list[Floats]]:
    """The node's own costs by class, and the tables, with one axis for each node of the step."""
    own = unary if step.runs is None else np.minimum.reduceat(unary[step.runs[0]], step.runs[1])
    aligned = []
    for part, table in zip(step.parts, tables, strict=True):
        one = table
        for axis, take in enumerate(part.takes):
            if take is not None:
                one = one.take(take, axis=axis)
        aligned.append(one.transpose(part.turn).reshape([size or 1 for size in part.shape]))
    return own.reshape(-1, *(1,) * (len(step.sizes) - 1)), aligned


def _message(step: _Step, unary: Floats, tables: Sequence[Floats], deadline: float) -> tuple[Floats, float]:
    own, aligned = _aligned(step, unary, tables)
    if math.prod(map(float, step.sizes)) <= SMALL:
        total = own
        for one in sorted(aligned, key=lambda one: one.size):
            total = total + one
        message = np.broadcast_to(total.min(axis=0), step.sizes[1:])
    else:
        message = min_plus([own, *aligned], step.sizes, deadline)
    least = float(message.min())
    return message - least, least


def _back(layout: Layout, unary: Sequence[Floats], slots: Sequence[Floats]) -> tuple[int, ...]:
    choice = [0] * len(unary)
    for step in reversed(layout.steps):
        total = unary[step.node]
        for part in step.parts:
            at = tuple(one if w == step.node else one[choice[w]] for w, one in part.seen)
            total = total + slots[part.slot][at]
        choice[step.node] = int(total.argmin())
    return tuple(choice)


def _steps(nodes: Sequence[int], network: Network, intern: Interner) -> tuple[_Step, ...]:
    of_node: list[dict[int, tuple[tuple[int, ...], tuple[Map, ...]]]] = [{} for _ in network.unary]
    for slot, factor in enumerate(network.pairs.values()):
        for v in factor.scope:
            of_node[v][slot] = factor.scope, factor.maps
    steps: list[_Step] = []
    layouts: dict[object, int] = {}
    slot = len(network.pairs)
    for v in nodes:
        named = dict(of_node[v])
        step, scope, maps = _step(v, len(network.unary[v]), named, slot, layouts, intern)
        for one, (others, _) in named.items():
            for w in others:
                of_node[w].pop(one, None)
        for w in scope:
            of_node[w][slot] = scope, maps
        steps.append(step)
        slot += 1
    return tuple(steps)


def _step(
    v: int,
    strategies: int,
    named: Mapping[int, tuple[tuple[int, ...], tuple[Map, ...]]],
    out: int,
    layouts: dict[object, int],
    intern: Interner,
) -> tuple[_Step, tuple[int, ...], tuple[Map, ...]]:
    scope = tuple(sorted({w for others, _ in named.values() for w in others} - {v}))
    axes = (v, *scope)
    ones: dict[int, list[Map]] = {w: [] for w in axes}
    for others, maps in named.values():
        for w, one in zip(others, maps, strict=True):
            ones[w].append(one)
    if not ones[v]:
        ones[v].append(intern(np.zeros(strategies, dtype=np.intp)))
    met = {w: meet(list({id(one): one for one in ones[w]}.values()), intern) for w in axes}
    finer = {w: dict(zip({id(one): one for one in ones[w]}, met[w][1], strict=True)) for w in axes}
    sizes = tuple(count(met[w][0], intern) for w in axes)
    parts = []
    layout: list[object] = [id(met[v][0]), *sizes]
    for slot, (others, maps) in named.items():
        takes = tuple(
            _or_none(finer[w][id(one)], count(one, intern)) for w, one in zip(others, maps, strict=True)
        )
        places = [axes.index(w) for w in others]
        shape = [0] * len(axes)
        for place in places:
            shape[place] = sizes[place]
        turn = tuple(int(axis) for axis in np.argsort(places))
        parts.append(_Part(slot, takes, turn, tuple(shape), tuple(zip(others, maps, strict=True))))
        layout.append((tuple(map(id, takes)), turn, tuple(shape)))
    number = layouts.setdefault(tuple(layout), len(layouts))
    own = met[v][0]
    runs = intern.recall(("class runs", id(own)), lambda: _runs(own))
    step = _Step(v, runs, tuple(parts), sizes, out, number)
    return step, scope, tuple(met[w][0] for w in scope)


def _or_none(take: Map, size: int) -> Map | None:
    return None if len(take) == size and np.array_equal(take, np.arange(size)) else take


def _runs(classes: Map) -> tuple[Map, Map] | None:
    if np.array_equal(classes, np.arange(len(classes))):
        return None
    order = np.argsort(classes, kind="stable")
    return order, np.flatnonzero(np.diff(classes[order], prepend=-1))
