"""Bytes over time: what a device holds under each strategy, as the usages of a Problem.

    the step's arguments    all the time; a result that replaces one is written into its memory
    buffers                 while they are held, under the spec that their node gives them
    unfinished sums         beside the finished ones, while the collective runs
    operands of a matmul    that a TPU runs in parts, to hide the reduce-scatter of its sums
    arguments               a copy of each that is replaced by what a TPU gathers, while the step reads it
    scanned arguments       in the narrower type that a TPU rounds them to before the loop

On a TPU the buffers are those of `planner.graph.buffers`; elsewhere all that leaves a block is one, from when
it is made until it is last read. Copies that are brought into another spec are usages of edges, and counted
there.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost.backend import rounded_reads
from planner.cost.problem import Usage
from planner.cost.traffic import Transfer
from planner.graph.buffers import Interval
from planner.graph.coarsen import Coarse, Node, Port
from planner.graph.graph import Graph, Op, Path, Value
from planner.graph.rule import Dims
from planner.graph.tiles import Pair, dims_in_tiles
from planner.sharding.spec import Spec, pieces, ways
from planner.sharding.strategy import Strategy, result_spec, spec_of

_LANES = 128

Floats = NDArray[np.float64]
Condition = Callable[[Sequence[Transfer]], bool]
Spelled = Callable[[Dims, Strategy], Spec]


class Specced(Protocol):
    """The different specs of a port, and which one each strategy of its node gives it."""

    @property
    def specs(self) -> tuple[Spec, ...]: ...

    @property
    def index(self) -> NDArray[np.int64]: ...


class Tabled(Protocol):
    """What all nodes of one signature share: strategies, and under each the collectives inside the node."""

    @property
    def strategies(self) -> tuple[Strategy, ...]: ...

    @property
    def sums(self) -> tuple[tuple[Transfer, ...], ...]: ...

    @property
    def outputs(self) -> Sequence[Specced]: ...


def held_values(graph: Graph, coarse: Coarse, kind: str, cores: int = 1) -> dict[int, Interval]:
    """The values that are arrays in memory on a kind of chip, each with its first and last position. cores:
    that share the work of a device."""
    replacing = {leaf.value for leaf in graph.results if leaf.partner is not None}
    if kind == "tpu":
        found = coarse.fused | (coarse.quotients if cores > 1 else {})
        return {value: held for value, held in found.items() if value not in replacing}
    ports = (port for node in coarse.nodes if node.kind in ("block", "op") for port in node.outputs)
    return {port.value: (port.first, port.last) for port in ports if port.value not in replacing}


def node_usages(
    graph: Graph,
    coarse: Coarse,
    tables: Sequence[Tabled],
    sizes: Mapping[str, int],
    kind: str,
    cores: int,
) -> list[Usage]:
    """The usages of all nodes. tables: of each node, one for all nodes of a signature, so that their usages
    share arrays. sizes: of the mesh axes. kind, cores: of the chip, see `held_values`."""
    held = held_values(graph, coarse, kind, cores)
    return list(_Usages(graph, tables, held, sizes, kind).of(coarse))


def replaced_usages(
    graph: Graph, coarse: Coarse, tables: Sequence[Tabled], sizes: Mapping[str, int], kind: str
) -> Iterator[Usage]:
    """The usages of the edges into arguments that results replace.

    Where a TPU gathers the result from smaller parts, it gathers into the argument's place; what the step
    reads of the argument, it reads from a copy, made before the first read and held until the last one.
    """
    reads: dict[int, list[Port]] = {}
    for link in coarse.links if kind == "tpu" else ():
        reads.setdefault(link.maker, []).append(coarse.nodes[link.user].inputs[link.into])
    known: dict[tuple, Floats] = {}
    for e, link in enumerate(coarse.links):
        if coarse.nodes[link.user].kind == "leaf" and link.user in reads:
            made, kept = tables[link.maker].outputs[link.out], tables[link.user].outputs[0]
            value = graph.values[coarse.nodes[link.user].outputs[0].value]
            key = (id(made), id(kept), value.bytes)
            if key not in known:
                known[key] = value.bytes * _gathered(made, kept, sizes)
            if known[key].any():
                first = min(port.first for port in reads[link.user])
                yield Usage(e, first, max(port.last for port in reads[link.user]) + 1, known[key])


def _gathered(made: Specced, kept: Specced, sizes: Mapping[str, int]) -> Floats:
    """The share of a value that a device keeps, where it makes less of it, and else nothing; per strategy of
    the maker, and of who keeps it."""
    before = np.array([pieces(spec, sizes) for spec in made.specs])[made.index][:, None]
    after = np.array([pieces(spec, sizes) for spec in kept.specs])[kept.index][None, :]
    return np.where(before > after, 1.0 / after, 0.0)


def stored_bytes(
    value: Value, spec: Spec, sizes: Mapping[str, int], kind: str, tiled: Pair | None = None
) -> float:
    """Bytes of an array on one device of a kind of chip.

    A TPU keeps arrays in whole tiles of 8 rows of 128 numbers, whichever dims of the array lie so that the
    fewest are padding; tiles have less rows where an array has, and a vector is one row of up to 1,024.
    tiled: the two dims that are rows and columns, in either order, where not any two may be.

    >>> stored_bytes(Value(0, (64, 24), "float32", 4), (("x",), ()), {"x": 2}, "tpu")
    12288.0
    """
    shape = [n // ways(axes, sizes) for n, axes in zip(value.shape, spec, strict=True)]
    large = [shape[d] for d in tiled] if tiled else [n for n in shape if n > 1]
    count = math.prod(shape)
    if kind != "tpu" or not count:
        return float(value.itemsize * count)
    if len(large) < 2:
        return float(
            value.itemsize * _whole(count, max(_LANES * 4 // value.itemsize, min(1024, _power(count))))
        )
    return float(
        value.itemsize
        * min(
            count // (rows * columns) * _whole(rows, min(8, _power(rows))) * _whole(columns, _LANES)
            for rows, columns in itertools.permutations(large, 2)
        )
    )


def _power(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << (count - 1).bit_length()


def _whole(count: int, tile: int) -> int:
    return -(-count // tile) * tile


class _Usages:
    def __init__(
        self,
        graph: Graph,
        tables: Sequence[Tabled],
        held: Mapping[int, Interval],
        sizes: Mapping[str, int],
        kind: str,
    ) -> None:
        self.graph, self.tables, self.held, self.sizes, self.kind = graph, tables, held, sizes, kind
        self.made = {value: i for i, op in enumerate(graph.ops) for value in op.results}
        self.position = {op.id: i for i, op in enumerate(graph.ops)}
        self.tiled = dims_in_tiles(graph) if kind == "tpu" else {}
        self.values = _as_held(graph, kind)
        self.known: dict[tuple, Floats] = {}

    def of(self, coarse: Coarse) -> Iterator[Usage]:
        end = len(self.graph.ops) + 1
        for node in coarse.nodes:
            if node.kind in ("leaf", "const"):
                (port,) = node.outputs
                yield Usage(node.id, 0, end, self._stored(node, port.value, port.dims))
            elif node.kind in ("block", "op"):
                for port in node.outputs:
                    yield from self._held(node, port.value, port.dims, result_spec)
                for value, dims in node.inner:
                    yield from self._held(node, value, dims, spec_of)
                for total in node.sums:
                    at = self.made[total.value]
                    yield from self._some(node, total.value, total.dims, (at, at), _is_unfinished)
        yield from self._looped(coarse)
        if self.kind == "tpu":
            yield from self._narrowed(coarse)

    def _stored(self, node: Node, value: int, dims: Dims) -> Floats:
        """Of an argument, per strategy of its node."""
        found, whole = self.tables[node.id].strategies, self.graph.values[value]
        return np.array([stored_bytes(whole, spec_of(dims, s), self.sizes, self.kind) for s in found])

    def _held(self, node: Node, value: int, dims: Dims, spec: Spelled) -> Iterator[Usage]:
        if value in self.held:
            first, last = self.held[value]
            yield Usage(node.id, first, last + 1, self._bytes(node, value, dims, spec))

    def _looped(self, coarse: Coarse) -> Iterator[Usage]:
        """A loop around a matmul's parts reads arrays: what the matmul else makes on the way in. Where
        several read one, each answers for the time since the one before, so that it counts once."""
        since = dict(self.made)
        for node in sorted(coarse.nodes, key=lambda node: node.position):
            if node.kind == "op" and any(map(_is_looped, self.tables[node.id].sums)):
                at = self.position[node.ops[0]]
                for port in node.inputs:
                    if port.value in self.made and port.value not in self.held:
                        times = (since[port.value], at)
                        yield from self._some(node, port.value, port.dims, times, _is_looped)
                        since[port.value] = at + 1

    def _narrowed(self, coarse: Coarse) -> Iterator[Usage]:
        """An argument that loops scan over, and only round to a narrower type, is rounded whole before the
        first of them, and held so until the last one ends."""
        readers: dict[int, list[Op]] = {}
        ends: dict[Path, int] = {}
        for i, op in enumerate(self.graph.ops):
            ends[op.region] = i
            for value in op.operands:
                if value is not None:
                    readers.setdefault(value, []).append(op)
        values = self.graph.values
        for node in coarse.nodes:
            port = node.outputs[0] if node.kind == "leaf" else None
            slices = (
                [op for op in readers.get(port.value, ()) if op.primitive == "scan_slice"] if port else []
            )
            after = [reader for op in slices for reader in readers.get(op.results[0], ())]
            sizes = {values[reader.results[0]].itemsize for reader in after}
            rounds = all(reader.primitive == "convert_element_type" for reader in after) and len(sizes) == 1
            if port and rounds and (share := sizes.pop() / values[port.value].itemsize) < 1:
                held = share * self._bytes(node, port.value, port.dims, spec_of)
                last = max(ends[op.region] for op in slices)
                yield Usage(node.id, min(self.position[op.id] for op in slices), last + 1, held)

    def _some(self, node: Node, value: int, dims: Dims, times: Interval, where: Condition) -> Iterator[Usage]:
        """A usage under those strategies whose collectives meet a condition."""
        table, made = self.tables[node.id], self.values[value]
        key = (id(table), dims, made.shape, made.itemsize, self.tiled.get(value), where)
        if key not in self.known:
            needed = np.array([where(found) for found in table.sums])
            self.known[key] = self._bytes(node, value, dims, spec_of) * needed
        if self.known[key].any():
            yield Usage(node.id, times[0], times[1] + 1, self.known[key])

    def _bytes(self, node: Node, value: int, dims: Dims, spec: Spelled) -> Floats:
        """Of a value on one device, per strategy of its node."""
        table, made, tiled = self.tables[node.id], self.values[value], self.tiled.get(value)
        key = (id(table), dims, made.shape, made.itemsize, tiled, spec)
        if key not in self.known:
            specs = (spec(dims, s) for s in table.strategies)
            self.known[key] = np.array([stored_bytes(made, s, self.sizes, self.kind, tiled) for s in specs])
        return self.known[key]


def _as_held(graph: Graph, kind: str) -> list[Value]:
    """The values of a step as they lie in memory: what is only read to be rounded to bfloat16 is rounded when
    it is written."""
    rounded = rounded_reads(graph, kind)
    narrow: dict[int, bool] = {}
    for op in graph.ops:
        for k, value in enumerate(op.operands):
            if value is not None:
                narrow[value] = narrow.get(value, True) and (op.id, k) in rounded
    for leaf in (*graph.arguments, *graph.results):
        narrow[leaf.value] = False
    return [
        dataclasses.replace(value, dtype="bfloat16", itemsize=2) if narrow.get(value.id) else value
        for value in graph.values
    ]


def _is_looped(found: Sequence[Transfer]) -> bool:
    """Whether a sum is finished by a loop around the parts of its matmul."""
    return any(one.kind == "reduce_scatter" and one.ring != 1.0 for one in found)


def _is_unfinished(found: Sequence[Transfer]) -> bool:
    """Whether there are partial sums in one piece; a loop has one part at a time."""
    return any(one.kind in ("all_reduce", "reduce_scatter") and one.ring == 1.0 for one in found)
