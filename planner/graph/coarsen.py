"""Coarsening: from ops to nodes, the things that get one strategy each.

A *block* is a maximal connected set of light ops (element-wise, broadcasts, reductions) in one loop body that
lie between the same heavy ops: XLA fuses them, and one assignment of axes to the block's factors fixes all
their specs. "Between the same heavy ops" is the *depth* of an op: the largest number of heavy ops on a path
to it. It keeps a backward block apart from the forward block whose saved values it reads, and one layer's
residual sum apart from the next.

A heavy op is a node by itself. An argument of the step is a node: its storage. A value that several heavy ops
of one loop body use gets a *copy* node: the spec it is used in, reached once and shared (one all-gather for a
forward and a backward use); the heavy ops read the copy, everything else reads the value as it is kept.

Every factor of a block is named by a class of op-factors that must agree, found by union-find along the
values inside the block.
"""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from planner.graph.graph import Graph, Op, Site
from planner.graph.labels import NONE, join, label
from planner.graph.rule import Dims

Kind = Literal["leaf", "const", "copy", "block", "op"]
_MOST_FACTORS = 6


@dataclasses.dataclass(frozen=True)
class Port:
    """A value as one node makes or reads it. dims: the node's factors of each dim. first, last: the program
    positions between which the node needs it. repeat: times a step. uses: where the use can be
    constrained."""

    value: int
    dims: Dims
    first: int
    last: int
    repeat: float
    uses: tuple[Site, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sum:
    """A reduction inside a node: splitting `reduced` leaves partial results of `value`."""

    value: int
    dims: Dims
    reduced: tuple[str, ...]
    repeat: float


@dataclasses.dataclass(frozen=True)
class Node:
    """Something that gets one strategy.

    sizes, splittable, labels: its factors, those that axes may be given to, and what each stands for. inner:
    values made and read inside it, which cost no memory traffic but are pinned all the same. flops: of one
    run, unsharded.
    """

    id: int
    kind: Kind
    ops: tuple[int, ...]
    sizes: tuple[tuple[str, int], ...]
    splittable: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    inner: tuple[tuple[int, Dims], ...]
    sums: tuple[Sum, ...]
    flops: float
    repeat: float
    position: int


@dataclasses.dataclass(frozen=True)
class Link:
    """Node `maker` makes at output `out` what node `user` reads at input `into`."""

    maker: int
    out: int
    user: int
    into: int


@dataclasses.dataclass(frozen=True)
class Coarse:
    """The graph of nodes. home: for each value, the (node, output port) that fixes its spec; absent for
    scalars."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    home: dict[int, tuple[int, int]]


def coarsen(graph: Graph) -> Coarse:
    """Group the ops of a graph into nodes and link them by the values they exchange."""
    when = {op.id: i for i, op in enumerate(graph.ops)}
    groups = _groups(graph, when)
    builder = _Builder(graph, when)
    builder.leaves()
    for factors in groups:
        builder.group(factors)
    return builder.link()


def _groups(graph: Graph, when: dict[int, int]) -> list["_Factors"]:
    """Ops that share a node, in order of their first op. Ops on scalars only are left out: nothing to
    decide."""
    level, depth = _levels(graph, when)
    parent: dict[int, int] = {}
    near: dict[int, list[Op]] = defaultdict(list)
    readers = Counter(value for op in graph.ops for value in op.operands)

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for op in graph.ops:
        arrays = [v for v in op.operands if v is not None and not _scalar(graph, v)]
        if not arrays and all(_scalar(graph, v) for v in op.results):
            continue
        parent[op.id] = op.id
        if not _mergeable(op):
            continue
        for value in arrays:
            for other in near[value]:
                same = level[other.id] == level[op.id] and other.region == op.region
                if same and _tied(value, other, op, readers[value], depth.get(value, 0)):
                    parent[find(op.id)] = find(other.id)
        for value in (*arrays, *op.results):
            near[value].append(op)
    grouped: dict[int, list[Op]] = defaultdict(list)
    for op in graph.ops:
        if op.id in parent:
            grouped[find(op.id)].append(op)
    return [part for members in grouped.values() for part in _split_wide(members)]


def _tied(value: int, first: Op, second: Op, readers: int, depth: int) -> bool:
    """Whether a value that one light op makes or reads, and another reads, puts them in one block.

    It must have all their dims: a bias that two blocks add says nothing about their other dims. A maker whose
    only reader has more dims (a broadcast) goes with its reader. Readers of a value of depth 0 share a
    parameter, no more.
    """
    if value in first.results:
        return _spans(second, value) or readers == 1
    return depth > 0 and _spans(first, value) and _spans(second, value)


def _spans(op: Op, value: int) -> bool:
    """Whether a value has all the dims that an op walks."""
    values, rules = (*op.operands, *op.results), op.rule.operands + op.rule.results
    dims = next(d for v, d in zip(values, rules, strict=True) if v == value)
    have = {f for dim in dims for f in dim}
    return all(f in have or extent == 1 for f, extent in op.rule.sizes.items())


def _levels(graph: Graph, when: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """The depth of each op, and of each value; `when` is moved to where the op will really run.

    A light op that only one deeper block reads belongs to that block (a moment times its decay; a derivative
    that only the backward pass needs): XLA computes it there, so its operands are held until then.
    """
    depth: dict[int, int] = {}
    level: dict[int, int] = {}
    readers: dict[int, list[Op]] = defaultdict(list)
    for op in graph.ops:
        arrays = [v for v in op.operands if v is not None and not _scalar(graph, v)]
        level[op.id] = max((depth.get(v, 0) for v in arrays), default=0)
        depth.update(dict.fromkeys(op.results, level[op.id] if op.light else level[op.id] + 1))
        for value in arrays:
            readers[value].append(op)
    returned = {leaf.value for leaf in graph.results}
    for op in reversed(graph.ops):
        after = [reader for value in op.results for reader in readers[value]]
        if not _mergeable(op) or not after or returned.intersection(op.results):
            continue
        levels = {level[reader.id] for reader in after}
        if len(levels) == 1 and all(_mergeable(r) and r.region == op.region for r in after):
            (level[op.id],) = levels
            when[op.id] = min(when[reader.id] for reader in after)
    return level, depth


def _mergeable(op: Op) -> bool:
    return op.light and op.primitive not in ("loop_carry", "cond_join")


def _scalar(graph: Graph, value: int) -> bool:
    return all(extent == 1 for extent in graph.values[value].shape)


def _split_wide(members: list[Op]) -> "list[_Factors]":
    """A block with too many factors would have too many strategies: fall back to its single ops."""
    factors = _Factors(members)
    if len(members) > 1 and len(factors.splittable) > _MOST_FACTORS:
        return [_Factors([op]) for op in members]
    return [factors]


class _Factors:
    """The factors of a group of ops: classes of (op, factor) that walk the same dim of a shared value."""

    def __init__(self, members: Sequence[Op]) -> None:
        self.members = members
        self.parent: dict[tuple[int, str], tuple[int, str]] = {}
        self.dims_of: dict[int, list[tuple[int, Dims]]] = defaultdict(list)
        for op in members:
            for factor in op.rule.factors:
                self.parent[op.id, factor] = (op.id, factor)
            values, dims_of_values = (*op.operands, *op.results), (*op.rule.operands, *op.rule.results)
            for value, dims in zip(values, dims_of_values, strict=True):
                if value is not None and dims:
                    self.dims_of[value].append((op.id, dims))
        for seen in self.dims_of.values():
            op0, dims0 = seen[0]
            for op1, dims1 in seen[1:]:
                self._unify(op0, dims0, op1, dims1)
        roots = dict.fromkeys(self.find(key) for key in self.parent)
        self.name = {root: f"f{i}" for i, root in enumerate(roots)}

    def _unify(self, op0: int, dims0: Dims, op1: int, dims1: Dims) -> None:
        for a, b in zip(dims0, dims1, strict=True):
            if len(a) == 1 and len(b) == 1:
                self.parent[self.find((op1, b[0]))] = self.find((op0, a[0]))

    def find(self, key: tuple[int, str]) -> tuple[int, str]:
        while self.parent[key] != key:
            self.parent[key] = self.parent[self.parent[key]]
            key = self.parent[key]
        return key

    def named(self, op: int, dims: Dims) -> Dims:
        """The dims of one op in the names of the group."""
        return tuple(tuple(self.name[self.find((op, f))] for f in dim) for dim in dims)

    def sizes(self) -> dict[str, int]:
        return {
            self.name[self.find((op.id, f))]: op.rule.sizes[f] for op in self.members for f in op.rule.factors
        }

    def labels(self, of_op: Mapping[tuple[int, str], str]) -> dict[str, str]:
        """The strongest label of each factor among the ops."""
        found: dict[str, str] = {}
        for op in self.members:
            for factor in op.rule.factors:
                name = self.name[self.find((op.id, factor))]
                found[name] = join(found.get(name, NONE), of_op[op.id, factor])
        return found

    @functools.cached_property
    def splittable(self) -> tuple[str, ...]:
        """Factors that every op may split, and that no value has on two dims."""
        blocked: set[str] = set()
        for op in self.members:
            free = set(op.rule.splittable)
            blocked.update(self.name[self.find((op.id, f))] for f in op.rule.factors if f not in free)
            for dims in op.rule.operands + op.rule.results:
                names = [self.name[self.find((op.id, dim[0]))] for dim in dims if dim]
                if len(set(names)) < len(names):
                    blocked.update(f for f in names if names.count(f) > 1)
        return tuple(f for f, extent in self.sizes().items() if f not in blocked and extent > 1)


class _Builder:
    """Makes the nodes one group at a time, then the copies, then the links."""

    def __init__(self, graph: Graph, when: dict[int, int]) -> None:
        self.graph, self.position = graph, when
        self.labels = label(graph)
        self.nodes: list[Node] = []
        self.home: dict[int, tuple[int, int]] = {}
        self.readers: dict[int, list[Op]] = defaultdict(list)
        for op in graph.ops:
            for value in op.operands:
                if value is not None:
                    self.readers[value].append(op)
        self.loop_end: dict[tuple, int] = {}
        for op in graph.ops:
            for depth in range(1, len(op.region) + 1):
                self.loop_end[op.region[:depth]] = self.position[op.id]
        self.region = {op.id: op.region for op in graph.ops}
        self.returned = {leaf.value for leaf in graph.results}

    def add(self, **fields) -> Node:
        node = Node(id=len(self.nodes), **fields)
        self.nodes.append(node)
        for k, port in enumerate(node.outputs):
            if not _scalar(self.graph, port.value):
                self.home[port.value] = (node.id, k)
        return node

    def leaves(self) -> None:
        """One node per array argument, whose input (if a result replaces it) is that result; one per
        constant."""
        results = {leaf.index: leaf.value for leaf in self.graph.results}
        made = {value for op in self.graph.ops for value in op.results}
        end = len(self.graph.ops)
        for leaf in self.graph.arguments:
            if not _scalar(self.graph, leaf.value):
                new = results.get(leaf.partner, -1) if leaf.partner is not None else -1
                self._leaf(
                    "leaf",
                    leaf.value,
                    [new] if new in made or new == leaf.value else [],
                    end,
                    self.labels.arguments[leaf.value],
                )
                made.add(leaf.value)
        for op in self.graph.ops:
            for value in op.operands:
                if value is not None and value not in made and not _scalar(self.graph, value):
                    made.add(value)
                    self._leaf("const", value, [], end, (NONE,) * len(self.graph.values[value].shape))

    def _leaf(
        self, kind: Kind, value: int, replaced_by: list[int], end: int, labels: tuple[str, ...]
    ) -> None:
        shape = self.graph.values[value].shape
        names = tuple(f"f{i}" for i in range(len(shape)))
        dims = tuple((name,) for name in names)
        free = (
            tuple(n for n, extent in zip(names, shape, strict=True) if extent > 1) if kind == "leaf" else ()
        )
        self.add(
            kind=kind,
            ops=(),
            sizes=tuple(zip(names, shape, strict=True)),
            splittable=free,
            labels=tuple(zip(names, labels, strict=True)),
            inputs=tuple(Port(new, dims, end, end, 1.0) for new in replaced_by),
            outputs=(Port(value, dims, 0, end, 1.0),),
            inner=(),
            sums=(),
            flops=0.0,
            repeat=1.0,
            position=0,
        )

    def group(self, factors: _Factors) -> None:
        """The node of a group of ops."""
        members = factors.members
        inside = {value for op in members for value in op.results}
        ids = {op.id for op in members}
        block = all(op.light for op in members)
        reads: dict[int, list[tuple[Op, int]]] = defaultdict(list)
        for op in members:
            for k, value in enumerate(op.operands):
                if value is not None and value not in inside and not _scalar(self.graph, value):
                    reads[value].append((op, k))
        inputs = tuple(self._input(value, uses, factors) for value, uses in reads.items())
        outputs, inner = [], []
        for op in members:
            for k, value in enumerate(op.results):
                escapes = value in self.returned or any(r.id not in ids for r in self.readers[value])
                if _scalar(self.graph, value):
                    continue
                dims = factors.named(op.id, op.rule.results[k])
                if escapes or not block:
                    outputs.append(self._output(value, dims, op))
                else:
                    inner.append((value, dims))
        self.add(
            kind="block" if block else "op",
            ops=tuple(op.id for op in members),
            sizes=tuple(factors.sizes().items()),
            splittable=factors.splittable,
            labels=tuple(factors.labels(self.labels.factors).items()),
            inputs=inputs,
            outputs=tuple(outputs),
            inner=tuple(inner),
            sums=tuple(_sums(members, factors)),
            flops=sum(op.flops for op in members),
            repeat=max(op.repeat for op in members),
            position=min(self.position[op.id] for op in members),
        )

    def _input(self, value: int, uses: Iterable[tuple[Op, int]], factors: _Factors) -> Port:
        uses = list(uses)
        op, k = uses[0]
        places = [self._use_position(o, i) for o, i in uses]
        return Port(
            value,
            factors.named(op.id, op.rule.operands[k]),
            min(places),
            max(places),
            max(1.0 if o.primitive == "loop_carry" and i == 0 else o.repeat for o, i in uses),
            tuple(site for o, i in uses for site in o.uses[i]),
        )

    def _use_position(self, op: Op, operand: int) -> int:
        """When an op needs an operand; the next value of a carry is needed when its loop body ends."""
        if op.primitive == "loop_carry" and operand == 1:
            return self.loop_end[op.region]
        return self.position[op.id]

    def _output(self, value: int, dims: Dims, op: Op) -> Port:
        born = self.position[op.id]
        last = born
        for reader in self.readers[value]:
            last = max(
                last, *(self._use_position(reader, k) for k, v in enumerate(reader.operands) if v == value)
            )
            last = max(last, self._held_until(reader, op))
        if value in self.returned:
            last = len(self.graph.ops)
        return Port(value, dims, born, last, op.repeat)

    def _held_until(self, reader: Op, maker: Op) -> int:
        """A value from outside a loop that its body reads is held until the loop ends."""
        for depth in range(1, len(reader.region) + 1):
            if reader.region[:depth] != maker.region[:depth]:
                return self.loop_end[reader.region[:depth]]
        return 0

    def copies(self) -> dict[tuple[int, int], int]:
        """Copy nodes, by (value, id of the reading node): where at least two heavy ops of one body read a
        value."""
        heavy: dict[tuple, list[tuple[Node, int]]] = defaultdict(list)
        for node in self.nodes:
            if node.kind == "op":
                for k, port in enumerate(node.inputs):
                    heavy[port.value, self.region[node.ops[0]]].append((node, k))
        reached = {}
        for (value, _), users in heavy.items():
            if len(users) < 2 or value not in self.home:
                continue
            ports = [node.inputs[k] for node, k in users]
            shape = self.graph.values[value].shape
            names = tuple(f"f{i}" for i in range(len(shape)))
            dims = tuple((name,) for name in names)
            first, last = min(p.first for p in ports), max(p.last for p in ports)
            repeat = max(p.repeat for p in ports)
            copy = self.add_copy(value, dims, first, last, repeat)
            reached.update({(value, node.id): copy.id for node, _ in users})
        return reached

    def add_copy(self, value: int, dims: Dims, first: int, last: int, repeat: float) -> Node:
        home = self.home[value]
        names = tuple(dim[0] for dim in dims)
        node = self.add(
            kind="copy",
            ops=(),
            sizes=tuple(zip(names, self.graph.values[value].shape, strict=True)),
            splittable=names,
            labels=tuple((n, NONE) for n in names),
            inputs=(Port(value, dims, first, last, repeat),),
            outputs=(Port(value, dims, first, last, repeat),),
            inner=(),
            sums=(),
            flops=0.0,
            repeat=repeat,
            position=first,
        )
        self.home[value] = home
        return node

    def link(self) -> Coarse:
        reached = self.copies()
        links = []
        for node in self.nodes:
            for k, port in enumerate(node.inputs):
                copy = reached.get((port.value, node.id))
                maker, out = (copy, 0) if copy is not None else self.home.get(port.value, (None, 0))
                if maker is not None and maker != node.id:
                    links.append(Link(maker, out, node.id, k))
        return Coarse(tuple(self.nodes), tuple(links), self.home)


def _sums(members: Iterable[Op], factors: _Factors) -> Iterable[Sum]:
    for op in members:
        reduced = op.rule.reduced
        if reduced:
            names = tuple(dict.fromkeys(factors.name[factors.find((op.id, f))] for f in reduced))
            for value, dims in zip(op.results, op.rule.results, strict=True):
                yield Sum(value, factors.named(op.id, dims), names, op.repeat)
