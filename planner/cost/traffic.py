"""Seconds and bytes of the collectives of a choice, on the wires of one mesh."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping

from meshes import collectives
from meshes.machine import Machine
from meshes.mesh import LogicalMesh
from planner.cost import backend
from planner.graph.coarsen import Coarse, Node, Port, Sum
from planner.graph.graph import Graph, Value
from planner.sharding.reshard import Step, in_two, reshard
from planner.sharding.spec import Spec, pieces, ways
from planner.sharding.strategy import ALL_REDUCE, Strategy, spec_of


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One collective: kind, axes, bytes of the array that one group holds (sent bytes for a permute), runs in
    a step. ring: bytes sent, as a multiple of what a ring sends."""

    kind: str
    axes: tuple[str, ...]
    bytes: float
    times: float
    value: int
    ring: float = 1.0


class Network:
    """The collectives of one mesh on one machine, as its compiler writes them (see `planner.cost.backend`),
    priced once each."""

    def __init__(self, machine: Machine, mesh: LogicalMesh) -> None:
        self.machine, self.mesh, self.sizes = machine, mesh, dict(mesh.sizes)
        self._emulated = {"reduce_scatter": "all_reduce"} if machine.chip.kind == "cpu" else {}
        self.joins_added = machine.chip.kind == "tpu"
        self.moves_carried = machine.chip.kind in ("tpu", "gpu")
        oneway = machine.chip.numbers.get("ici_bandwidth_bytes_per_s_oneway_per_link", 0.0)
        self.link = 2 * oneway / machine.chip.devices_per_chip
        self.squares = _squares(mesh)
        self.seconds = functools.cache(self._seconds)

    def reshard(self, source: Spec, target: Spec) -> Iterator[Step]:
        """The steps from one spec to the other, as the backend does best: a gather over all devices that it
        would write as an all-reduce is made of two."""
        now = source
        for step in reshard(source, target, self.sizes):
            axes = [axis for axis in step.axes if self.sizes[axis] > 1]
            if len(axes) > 1 and self._sums_to_gather(step.kind, step.axes):
                yield from in_two(now, step, self.sizes)
            else:
                yield step
            now = step.spec

    def _sums_to_gather(self, kind: str, axes: tuple[str, ...]) -> bool:
        group = ways(axes, self.sizes)
        return kind == "all_gather" and backend.sums_to_gather(
            self.machine.chip.kind, group, self.mesh.devices
        )

    def move(self, kind: str, axes: tuple[str, ...], count: float, row: int) -> tuple[str, float]:
        """(the kind that is written for a step of a reshard, its seconds). row: see `row_of`."""
        if self._sums_to_gather(kind, axes):
            kind = "all_reduce"
        elif kind == "all_gather" and row:
            kind = backend.gathers_vectors(self.machine.chip.kind, count / row / ways(axes, self.sizes))
        return kind, self.seconds(kind, axes, count)

    def _seconds(self, kind: str, axes: tuple[str, ...], count: float) -> float:
        return collectives.seconds(self.machine, self.mesh, self._emulated.get(kind, kind), axes, count)

    def moved_bytes(self, value: Value) -> float:
        """Bytes of a whole array as it moves."""
        return value.bytes * backend.widening(self.machine.chip.kind, value.dtype)

    def wire_bytes(self, one: Transfer) -> float:
        """Bytes each device sends in one run."""
        kind, group = self._emulated.get(one.kind, one.kind), ways(one.axes, self.sizes)
        return one.ring * collectives.wire_bytes(kind, group, one.bytes)

    def run_seconds(self, one: Transfer) -> float:
        """Seconds of one run."""
        return self.seconds(one.kind, one.axes, one.ring * one.bytes)

    def price(self, transfers: Iterable[Transfer]) -> float:
        """Seconds of collectives that run one after the other."""
        return sum(t.times * self.run_seconds(t) for t in transfers)


def _squares(mesh: LogicalMesh) -> frozenset[frozenset[str]]:
    """The sets of axes whose groups are squares of 2 x 2 of more devices, on two wires of a torus."""
    wires = {axis: some for axis, some in zip(mesh.axes, mesh.wires, strict=True) if some}
    found = set[frozenset[str]]()
    for axes in (*itertools.combinations(wires, 1), *itertools.combinations(wires, 2)):
        ridden = [wire for axis in axes for wire in wires[axis]]
        across = len({wire.name for wire in ridden}) == 2
        if across and [wire.size for wire in ridden] == [2, 2] and mesh.devices > 4:
            found.add(frozenset(axes))
    return frozenset(found)


def finishes(
    node: Node, primitive: str, graph: Graph, strategy: Strategy, network: Network
) -> Iterator[Transfer]:
    """The collectives inside a node: rows that its parts read of their neighbours', and those that finish its
    partial sums."""
    yield from _halos(node, graph, strategy, network)
    for total in node.sums:
        places, value = _places(total, strategy), graph.values[total.value]
        if not places or value.bytes <= value.itemsize:
            continue  # XLA combines the sums of scalars into one collective; nothing to choose by
        for kind, group, count, ring in _written(node, primitive, total, graph, strategy, places, network):
            yield Transfer(kind, group, count, total.repeat, total.value, ring)


def _written(
    node: Node,
    primitive: str,
    total: Sum,
    graph: Graph,
    strategy: Strategy,
    places: Mapping[int, tuple[str, ...]],
    network: Network,
) -> Iterator[backend.Written]:
    """What finishes a partial sum. places: as for `tpu_sums`."""
    sizes = network.sizes
    if network.machine.chip.kind == "tpu":
        partial = _partial(node, primitive, total, graph, strategy, network)
        yield from backend.tpu_sums(partial, places, sizes, network.link)
        return
    kept = network.moved_bytes(graph.values[total.value]) / pieces(spec_of(total.dims, strategy), sizes)
    if network.machine.chip.kind == "cpu":
        factors = [axes for factor in total.reduced if (axes := strategy.axes(factor))]
        yield from backend.cpu_sums(kept, places, factors, sizes, primitive.startswith("scatter"))
        return
    for place, axes in sorted(places.items(), reverse=True):
        yield "all_reduce" if place == ALL_REDUCE else "reduce_scatter", axes, kept, 1.0
        kept /= 1 if place == ALL_REDUCE else ways(axes, sizes)


def _halos(node: Node, graph: Graph, strategy: Strategy, network: Network) -> Iterator[Transfer]:
    """A permute from each side that a node reads rows from; those of a later dim hold the rows that came
    before."""
    sizes = network.sizes
    grown: dict[int, float] = {}
    for border in node.borders:
        axes = strategy.axes(border.dims[border.dim][0])
        if axes:
            value = graph.values[border.value]
            part = network.moved_bytes(value) / pieces(spec_of(border.dims, strategy), sizes)
            part *= grown.get(value.id, 1.0)
            rows = value.shape[border.dim] / ways(axes, sizes)
            for count in filter(None, (border.before, border.after)):
                yield Transfer("permute", axes, part * count / rows, border.repeat, value.id)
            grown[value.id] = grown.get(value.id, 1.0) * (1 + (border.before + border.after) / rows)


def _partial(
    node: Node, primitive: str, total: Sum, graph: Graph, strategy: Strategy, network: Network
) -> backend.Partial:
    value, sizes = graph.values[total.value], network.sizes
    spec = spec_of(total.dims, strategy)
    is_matmul = primitive == "dot_general"
    share = ways(tuple(a for axes in strategy.split.values() for a in axes), sizes)
    return backend.Partial(
        shape=tuple(n // ways(axes, sizes) for n, axes in zip(value.shape, spec, strict=True)),
        itemsize=value.itemsize,
        bytes=value.bytes / pieces(spec, sizes),
        whole=frozenset(dim for dim, axes in enumerate(spec) if not axes),
        hiding=node.flops / share / network.machine.peak_flops(value.dtype) if is_matmul else 0.0,
        idle=tuple(a for a in sizes if sizes[a] > 1 and not any(a in s for s in strategy.split.values())),
        led=primitive in backend.PRODUCTS,
        tiles=backend.tile_orders(primitive, len(value.shape), total.tiled),
        squares=network.squares,
    )


def way_made(
    node: Node, primitive: str, graph: Graph, strategy: Strategy, network: Network
) -> tuple[Spec, ...]:
    """The specs that the result of a matmul or convolution passes through while its sum is scattered, but for
    the last one: what leads the backend to the planned collectives."""
    places = {place for place in strategy.finish.values() if place != ALL_REDUCE}
    if network.machine.chip.kind != "tpu" or primitive not in backend.PRODUCTS or not places:
        return ()
    (total,) = node.sums
    partial = _partial(node, primitive, total, graph, strategy, network)
    by_dim = _places(total, strategy)
    now = list(spec_of(total.dims, strategy))
    way = [tuple(now)] if partial.idle else []
    for dim, axes in backend.scatter_stages(partial, by_dim, network.sizes, network.link)[:-1]:
        now[dim] += axes
        way.append(tuple(now))
    return tuple(way)


def _places(total: Sum, strategy: Strategy) -> dict[int, tuple[str, ...]]:
    """The axes that a sum is over, by the dim they are scattered onto, or ALL_REDUCE."""
    places: dict[int, tuple[str, ...]] = {}
    for axis in (a for factor in total.reduced for a in strategy.axes(factor)):
        place = strategy.finish.get(axis, ALL_REDUCE)
        places[place] = (*places.get(place, ()), axis)
    return places


def row_of(value: Value) -> int:
    """Bytes of an element of a value with one dim, 0 for others: what tells the rows of a vector."""
    return value.itemsize if len(value.shape) == 1 else 0


def moves(
    port: Port, value: Value, rounded: bool, source: Spec, target: Spec, network: Network
) -> Iterator[Transfer]:
    """The collectives that bring a value, kept in `source`, to where a node reads it in `target`. rounded:
    whether it is brought there in half its width."""
    whole = network.moved_bytes(value) / (2 if rounded else 1)
    for step in network.reshard(source, target):
        kind, _ = network.move(step.kind, step.axes, step.fraction * whole, row_of(value))
        yield Transfer(kind, step.axes, step.fraction * whole, port.repeat, port.value)


def rounded_ports(graph: Graph, coarse: Coarse, network: Network) -> frozenset[tuple[int, int]]:
    """(node, input) of every value that the backend brings to that node in half its width: all that is done
    with it there, or by those who read the copy, rounds it."""
    reads = backend.rounded_reads(graph, network.machine.chip.kind)
    operands = {op.id: op.operands for op in graph.ops}
    found = set()
    for node in coarse.nodes:
        for into, port in enumerate(node.inputs):
            uses = [(op, k) for op in node.ops for k, v in enumerate(operands[op]) if v == port.value]
            if uses and reads.issuperset(uses):
                found.add((node.id, into))
    users: dict[int, list[tuple[int, int]]] = {}
    for link in coarse.links:
        users.setdefault(link.maker, []).append((link.user, link.into))
    found.update((n.id, 0) for n in coarse.nodes if n.kind == "copy" and found.issuperset(users[n.id]))
    return frozenset(found)
