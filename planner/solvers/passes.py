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
    """A table in the sum of a step. takes: the axes of which classes are taken, and these; turn: the order of
    its axes there; shape: with one axis for each node of the step, of extent one where it does not vary; at:
    where the node's own strategies lie, and the other nodes with their maps."""

    slot: int
    takes: tuple[tuple[int, Map], ...]
    turn: tuple[int, ...] | None
    shape: tuple[int, ...]
    at: tuple[Map | slice | tuple[int, Map], ...]


@dataclasses.dataclass(frozen=True)
class _Step:
    """The elimination of a node. runs: its strategies sorted by class, and where each class begins, None if
    all differ; parts: the smallest first; sizes: classes of the node and of its dependent set; out: the slot
    of its message; layout: the same number for steps that do the same with their tables."""

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


def layout_of(priced: Priced, intern: Interner, most: float, deadline: float = math.inf) -> Layout | None:
    """The order and the steps; None if a pass would compute over `most` entries. Raises OutOfTime after
    `deadline`."""
    order = best_order(priced.network, intern, most=most, enough=most / 10.0, deadline=deadline)
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
        for axis, take in part.takes:
            one = one.take(take, axis=axis)
        aligned.append((one if part.turn is None else one.transpose(part.turn)).reshape(part.shape))
    return own.reshape(-1, *(1,) * (len(step.sizes) - 1)), aligned


def _message(step: _Step, unary: Floats, tables: Sequence[Floats], deadline: float) -> tuple[Floats, float]:
    own, aligned = _aligned(step, unary, tables)
    if math.prod(step.sizes) <= SMALL:
        total = own
        for one in aligned:
            total = total + one
        message = np.minimum.reduce(total)
        if message.shape != step.sizes[1:]:
            message = np.broadcast_to(message, step.sizes[1:])
    else:
        message = min_plus([own, *aligned], step.sizes, deadline)
    least = float(np.minimum.reduce(message, axis=None))
    return message - least, least


def _back(layout: Layout, unary: Sequence[Floats], slots: Sequence[Floats]) -> tuple[int, ...]:
    choice = [0] * len(unary)
    for step in reversed(layout.steps):
        total = unary[step.node]
        for part in step.parts:
            at = tuple([one[1][choice[one[0]]] if isinstance(one, tuple) else one for one in part.at])
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
    parts: list[_Part] = []
    layout: list[object] = [id(met[v][0]), *sizes]
    at_first = len(layout)
    for slot, (others, maps) in named.items():
        finest = [finer[w][id(one)] for w, one in zip(others, maps, strict=True)]
        takes = [(axis, to) for axis, to in enumerate(finest) if not _as_it_is(to, count(maps[axis], intern))]
        places = [axes.index(w) for w in others]
        shape = tuple(size if axis in places else 1 for axis, size in enumerate(sizes))
        turn = None if places == sorted(places) else tuple(np.argsort(places).tolist())
        at = [_own(one) if w == v else (w, one) for w, one in zip(others, maps, strict=True)]
        parts.append(_Part(slot, tuple(takes), turn, shape, tuple(at)))
        layout.append((tuple((axis, id(to)) for axis, to in takes), turn, shape))
    order = sorted(range(len(parts)), key=lambda k: math.prod(parts[k].shape))
    parts, layout = [parts[k] for k in order], [*layout[:at_first], *(layout[at_first + k] for k in order)]
    number = layouts.setdefault(tuple(layout), len(layouts))
    own = met[v][0]
    runs = intern.recall(("class runs", id(own)), lambda: _runs(own))
    step = _Step(v, runs, tuple(parts), sizes, out, number)
    return step, scope, tuple(met[w][0] for w in scope)


def _as_it_is(take: Map, size: int) -> bool:
    return len(take) == size and np.array_equal(take, np.arange(size))


def _own(one: Map) -> Map | slice:
    return slice(None) if np.array_equal(one, np.arange(len(one))) else one


def _runs(classes: Map) -> tuple[Map, Map] | None:
    if np.array_equal(classes, np.arange(len(classes))):
        return None
    order = np.argsort(classes, kind="stable")
    return order, np.flatnonzero(np.diff(classes[order], prepend=-1))
