"""Seconds and bytes of the collectives of a choice, on the wires of one mesh."""

import dataclasses
import functools
from collections.abc import Iterator

from meshes import collectives
from meshes.machine import Machine
from meshes.mesh import LogicalMesh
from planner.graph.coarsen import Node, Port, Sum
from planner.graph.graph import Graph
from planner.sharding.reshard import reshard
from planner.sharding.spec import Spec, pieces, ways
from planner.sharding.strategy import ALL_REDUCE, Strategy, spec_of


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One collective: kind, axes, bytes of the array that one group holds (sent bytes for a permute), runs in
    a step."""

    kind: str
    axes: tuple[str, ...]
    bytes: float
    times: float
    value: int


class Network:
    """The collectives of one mesh on one machine, priced once each.

    XLA's CPU backend has no reduce-scatter: it runs an all-reduce and slices, and is priced so. Nor does it
    join the all-reduces that the partitioner writes for a sum over several dims, one for each (`joins`).
    """

    def __init__(self, machine: Machine, mesh: LogicalMesh) -> None:
        self.machine, self.mesh, self.sizes = machine, mesh, dict(mesh.sizes)
        self._emulated = {"reduce_scatter": "all_reduce"} if machine.chip.kind == "cpu" else {}
        self.joins = machine.chip.kind != "cpu"
        self.seconds = functools.cache(self._seconds)

    def _seconds(self, kind: str, axes: tuple[str, ...], count: float) -> float:
        return collectives.seconds(self.machine, self.mesh, self._emulated.get(kind, kind), axes, count)

    def wire_bytes(self, kind: str, axes: tuple[str, ...], count: float) -> float:
        """Bytes each device sends."""
        return collectives.wire_bytes(self._emulated.get(kind, kind), ways(axes, self.sizes), count)

    def price(self, transfers: Iterator[Transfer]) -> float:
        """Seconds of collectives that run one after the other."""
        return sum(t.times * self.seconds(t.kind, t.axes, t.bytes) for t in transfers)


def finishes(node: Node, graph: Graph, strategy: Strategy, network: Network) -> Iterator[Transfer]:
    """The collectives that finish the partial sums inside a node."""
    sizes = network.sizes
    for total in node.sums:
        axes = tuple(a for factor in total.reduced for a in strategy.axes(factor))
        whole = graph.values[total.value].bytes
        if not axes or whole <= graph.values[total.value].itemsize:
            continue  # XLA combines the sums of scalars into one collective; nothing to choose by
        kept = whole / pieces(spec_of(total.dims, strategy), sizes)
        places: dict[int, tuple[str, ...]] = {}
        for axis in axes:
            place = strategy.finish.get(axis, ALL_REDUCE)
            places[place] = (*places.get(place, ()), axis)
        for place, scattered in sorted(places.items(), reverse=True):
            if place == ALL_REDUCE:
                for together in [scattered] if network.joins else _by_factor(scattered, total, strategy):
                    yield Transfer("all_reduce", together, kept, total.repeat, total.value)
            else:
                yield Transfer("reduce_scatter", scattered, kept, total.repeat, total.value)
                kept /= ways(scattered, sizes)


def _by_factor(axes: tuple[str, ...], total: Sum, strategy: Strategy) -> list[tuple[str, ...]]:
    """The axes that split each of the reduced factors, apart."""
    parts = [tuple(a for a in strategy.axes(factor) if a in axes) for factor in total.reduced]
    return [part for part in parts if part]


def moves(port: Port, graph: Graph, source: Spec, target: Spec, sizes: dict[str, int]) -> Iterator[Transfer]:
    """The collectives that bring a value, kept in `source`, to where a node reads it in `target`."""
    whole = graph.values[port.value].bytes
    for step in reshard(source, target, sizes):
        yield Transfer(step.kind, step.axes, step.fraction * whole, port.repeat, port.value)
