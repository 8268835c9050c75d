"""Coarsening: from ops to nodes, the things that get one strategy each.

Light ops make up blocks (`planner.graph.blocks`). A heavy op is a node by itself. An argument of the step is
a node: its storage. A value that several heavy ops of one loop body use gets a *copy* node: the spec it is
used in, reached once and shared (one all-gather for a forward and a backward use). So does a value that
several blocks of one body use: one that heavy ops and blocks use may have both.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from planner.graph.blocks import Block, find_blocks, is_scalar
from planner.graph.buffers import Interval, buffers, quotients
from planner.graph.graph import Graph, Op, Path, Site, repeats_of, runs_outside
from planner.graph.labels import NONE, label
from planner.graph.rule import Dims
from planner.graph.tiles import CONVOLUTION, Pair, fixed_dims

Kind = Literal["leaf", "const", "copy", "block", "op"]


_BORDERS = frozenset({"loop_carry", "cond_join", "scan_slice", "scan_stack"})


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
    """A reduction inside a node: splitting `reduced` leaves partial results of `value`. tiled: its dims that
    lie in tiles, in either order, where not any two may."""

    value: int
    dims: Dims
    reduced: tuple[str, ...]
    repeat: float
    tiled: Pair | None = None


@dataclasses.dataclass(frozen=True)
class Border:
    """A dim of a value that a node reads with a halo: splitting `dims[dim]` brings rows of neighbours."""

    value: int
    dims: Dims
    dim: int
    before: int
    after: int
    repeat: float


@dataclasses.dataclass(frozen=True)
class Node:
    """Something that gets one strategy.

    sizes, splittable, labels: its factors, those that axes may be given to, and what each stands for. inner:
    values made and read inside it, which cost no memory traffic but are pinned all the same. flops: of one
    run, unsharded. borders: the dims it reads with a halo. apart, filling: factors, as in Rule.
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
    borders: tuple[Border, ...] = ()
    apart: tuple[tuple[str, str], ...] = ()
    filling: frozenset[str] = frozenset()


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
    scalars. fused: what is in memory, and when, where the compiler fuses; quotients: what more is, where two
    cores share a matmul (`planner.graph.buffers`)."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    home: dict[int, tuple[int, int]]
    fused: dict[int, Interval]
    quotients: dict[int, Interval]


def coarsen(graph: Graph) -> Coarse:
    """Group the ops of a graph into nodes and link them by the values they exchange."""
    when = {op.id: i for i, op in enumerate(graph.ops)}
    blocks = find_blocks(graph, when)
    builder = _Builder(graph, when)
    builder.leaves()
    for block in blocks:
        builder.block(block)
    return builder.link()


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
        self.loop_start: dict[tuple, int] = {}
        for op in graph.ops:
            for depth in range(1, len(op.region) + 1):
                self.loop_start.setdefault(op.region[:depth], self.position[op.id])
                self.loop_end[op.region[:depth]] = self.position[op.id]
        self.made_repeat = _made_repeats(graph)
        self.region = {op.id: op.region for op in graph.ops}
        self.returned = {leaf.value for leaf in graph.results}

    def add(self, **fields) -> Node:
        node = Node(id=len(self.nodes), **fields)
        self.nodes.append(node)
        for k, port in enumerate(node.outputs):
            if not is_scalar(self.graph, port.value):
                self.home[port.value] = (node.id, k)
        return node

    def leaves(self) -> None:
        """One node per array argument, whose input (if a result replaces it) is that result; one per
        constant."""
        results = {leaf.index: leaf.value for leaf in self.graph.results}
        made = {value for op in self.graph.ops for value in op.results}
        end = len(self.graph.ops)
        for leaf in self.graph.arguments:
            if not is_scalar(self.graph, leaf.value):
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
                if value is not None and value not in made and not is_scalar(self.graph, value):
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

    def block(self, block: Block) -> None:
        """The node of a block, or of a heavy op."""
        members = block.members
        inside = {value for op in members for value in op.results}
        ids = {op.id for op in members}
        light = all(op.light for op in members)
        reads: dict[int, list[tuple[Op, int]]] = defaultdict(list)
        for op in members:
            for k, value in enumerate(op.operands):
                if value is not None and value not in inside and not is_scalar(self.graph, value):
                    reads[value].append((op, k))
        inputs = tuple(self._input(value, uses, block) for value, uses in reads.items())
        outputs, inner = [], []
        for op in members:
            for k, value in enumerate(op.results):
                escapes = value in self.returned or any(r.id not in ids for r in self.readers[value])
                if is_scalar(self.graph, value):
                    continue
                dims = block.named(op.id, op.rule.results[k])
                if escapes or not light:
                    outputs.append(self._output(value, dims, op))
                else:
                    inner.append((value, dims))
        self.add(
            kind="block" if light else "op",
            ops=tuple(op.id for op in members),
            sizes=tuple(block.sizes().items()),
            splittable=block.splittable,
            labels=tuple(block.labels(self.labels.factors).items()),
            inputs=inputs,
            outputs=tuple(outputs),
            inner=tuple(inner),
            sums=tuple(_sums(block)),
            flops=sum(op.flops for op in members),
            repeat=max(op.repeat for op in members),
            position=min(self.position[op.id] for op in members),
            borders=tuple(_borders(block)),
            apart=tuple(
                (block.factor(op.id, one), block.factor(op.id, other))
                for op in members
                for one, other in op.rule.apart
            ),
            filling=frozenset(block.factor(op.id, f) for op in members for f in op.rule.filling),
        )

    def _input(self, value: int, uses: Sequence[tuple[Op, int]], block: Block) -> Port:
        op, k = uses[0]
        places = [self._use_position(o, i) for o, i in uses]
        return Port(
            value,
            block.named(op.id, op.rule.operands[k]),
            min(places),
            max(places),
            max(self._use_repeat(value, o, i) for o, i in uses),
            tuple(site for o, i in uses for site in o.uses[i]),
        )

    def _use_repeat(self, value: int, op: Op, operand: int) -> float:
        """How often a use is brought about: what enters a loop as a whole (the first carry, a scanned array)
        is brought into place once for all iterations."""
        outside = op.primitive == "scan_slice" or (op.primitive == "loop_carry" and operand == 0)
        return self.made_repeat.get(value, 1.0) if outside else op.repeat

    def _use_position(self, op: Op, operand: int) -> int:
        """When an op needs an operand; the next value of a carry is needed when its loop body ends."""
        if op.primitive == "loop_carry" and operand == 1:
            return self.loop_end[op.region]
        return self.position[op.id]

    def _output(self, value: int, dims: Dims, op: Op) -> Port:
        last = self.position[op.id]
        born = self.loop_start[op.region] if op.primitive == "scan_stack" else last  # whole from the start
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
        value, or loops in it scan over it, and where at least two blocks do. The compiler moves it once for a
        forward and a backward use, in the same spec, and so do constraints of one value."""
        readers: dict[tuple, list[tuple[Node, int]]] = defaultdict(list)
        for node in self.nodes:
            for k, port in enumerate(node.inputs):
                if node.kind == "op":
                    readers[port.value, self.region[node.ops[0]], "op"].append((node, k))
                elif node.kind == "block" and self._scans(node, port.value):
                    outside = self._outside(self.region[node.ops[0]])
                    readers[port.value, outside, "op"].append((node, k))
                elif node.kind == "block" and self._stays_inside(node, port.value):
                    readers[port.value, self.region[node.ops[0]], "block"].append((node, k))
        reached = {}
        for (value, *_), users in readers.items():
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

    def _stays_inside(self, node: Node, value: int) -> bool:
        """Whether a node reads a value in its own loop body only, not where a loop or a branch ends."""
        ops = set(node.ops)
        return not any(r.id in ops and r.primitive in _BORDERS for r in self.readers[value])

    def _scans(self, node: Node, value: int) -> bool:
        """Whether all that a node does with a value is to scan over it: it enters the loop as a whole."""
        readers = [reader for reader in self.readers[value] if reader.id in node.ops]
        return bool(readers) and all(reader.primitive == "scan_slice" for reader in readers)

    def _outside(self, region: Path) -> Path:
        """The innermost loop body, or the whole step, around a loop body."""
        around = [r for r in self.loop_end if len(r) < len(region) and region[: len(r)] == r]
        return max(around, key=len, default=())

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
        return Coarse(tuple(self.nodes), tuple(links), self.home, buffers(self.graph), quotients(self.graph))


def _made_repeats(graph: Graph) -> dict[int, float]:
    """How often each value comes to be in a step: what a loop stacks or carries to its end, once a loop."""
    repeats, found = repeats_of(graph.ops), {}
    for op in graph.ops:
        for k, value in enumerate(op.results):
            is_last = op.primitive == "scan_stack" or (op.primitive == "loop_carry" and k == 1)
            found[value] = runs_outside(op, repeats) if is_last else op.repeat
    return found


def _sums(block: Block) -> Iterable[Sum]:
    for op in block.members:
        reduced = tuple(dict.fromkeys(block.factor(op.id, f) for f in op.rule.reduced))
        if reduced:
            for value, dims in zip(op.results, op.rule.results, strict=True):
                tiled = fixed_dims(dims) if op.primitive == CONVOLUTION else None
                yield Sum(value, block.named(op.id, dims), reduced, op.repeat, tiled)


def _borders(block: Block) -> Iterable[Border]:
    for op in block.members:
        for halo in op.rule.halos:
            value = op.operands[halo.operand]
            if value is not None:
                dims = block.named(op.id, op.rule.operands[halo.operand])
                yield Border(value, dims, halo.dim, halo.before, halo.after, op.repeat)
