"""Bytes over time: what a device holds under each strategy, as the usages of a Problem.

    the step's arguments    all the time; a result that replaces one is written into its memory
    buffers                 while they are held, under the spec that their node gives them
    unfinished sums         beside the finished ones, while the collective runs
    operands of a matmul    that a TPU runs in parts, to hide the reduce-scatter of its sums

On a TPU the buffers are those of `planner.graph.buffers`; elsewhere all that leaves a block is one, from when
it is made until it is last read. Copies that are brought into another spec are usages of edges, and counted
there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Usage
from planner.cost.traffic import Transfer
from planner.graph.buffers import Interval, buffers
from planner.graph.coarsen import Coarse, Node
from planner.graph.graph import Graph
from planner.graph.rule import Dims
from planner.sharding.spec import Spec, pieces
from planner.sharding.strategy import Strategy, result_spec, spec_of

Floats = NDArray[np.float64]
Condition = Callable[[Sequence[Transfer]], bool]
Spelled = Callable[[Dims, Strategy], Spec]


class Tabled(Protocol):
    """What all nodes of one signature share: strategies, and under each the collectives inside the node."""

    @property
    def strategies(self) -> tuple[Strategy, ...]: ...

    @property
    def sums(self) -> tuple[tuple[Transfer, ...], ...]: ...


def held_values(graph: Graph, coarse: Coarse, kind: str) -> dict[int, Interval]:
    """The values that are arrays in memory on a kind of chip, each with its first and last position."""
    replacing = {leaf.value for leaf in graph.results if leaf.partner is not None}
    if kind == "tpu":
        return {value: held for value, held in buffers(graph).items() if value not in replacing}
    ports = (port for node in coarse.nodes if node.kind in ("block", "op") for port in node.outputs)
    return {port.value: (port.first, port.last) for port in ports if port.value not in replacing}


def node_usages(
    graph: Graph,
    coarse: Coarse,
    tables: Sequence[Tabled],
    held: Mapping[int, Interval],
    sizes: Mapping[str, int],
) -> list[Usage]:
    """The usages of all nodes. tables: of each node, one for all nodes of a signature, so that their usages
    share arrays. held: from `held_values`. sizes: of the mesh axes."""
    return list(_Usages(graph, tables, held, sizes).of(coarse))


class _Usages:
    def __init__(
        self, graph: Graph, tables: Sequence[Tabled], held: Mapping[int, Interval], sizes: Mapping[str, int]
    ) -> None:
        self.graph, self.tables, self.held, self.sizes = graph, tables, held, sizes
        self.made = {value: i for i, op in enumerate(graph.ops) for value in op.results}
        self.position = {op.id: i for i, op in enumerate(graph.ops)}
        self.known: dict[tuple, Floats] = {}

    def of(self, coarse: Coarse) -> Iterator[Usage]:
        end = len(self.graph.ops) + 1
        for node in coarse.nodes:
            if node.kind in ("leaf", "const"):
                (port,) = node.outputs
                yield Usage(node.id, 0, end, self._bytes(node, port.value, port.dims, result_spec))
            elif node.kind in ("block", "op"):
                for port in node.outputs:
                    yield from self._held(node, port.value, port.dims, result_spec)
                for value, dims in node.inner:
                    yield from self._held(node, value, dims, spec_of)
                for total in node.sums:
                    at = self.made[total.value]
                    yield from self._some(node, total.value, total.dims, (at, at), _is_unfinished)
        yield from self._looped(coarse)

    def _held(self, node: Node, value: int, dims: Dims, spec: Spelled) -> Iterator[Usage]:
        if value in self.held:
            first, last = self.held[value]
            yield Usage(node.id, first, last + 1, self._bytes(node, value, dims, spec))

    def _looped(self, coarse: Coarse) -> Iterator[Usage]:
        """A loop around a matmul's parts reads arrays: what the matmul else makes on the way in. Where several
        read one, each answers for the time since the one before, so that it counts once."""
        since = dict(self.made)
        for node in sorted(coarse.nodes, key=lambda node: node.position):
            if node.kind == "op" and any(map(_is_looped, self.tables[node.id].sums)):
                at = self.position[node.ops[0]]
                for port in node.inputs:
                    if port.value in self.made and port.value not in self.held:
                        times = (since[port.value], at)
                        yield from self._some(node, port.value, port.dims, times, _is_looped)
                        since[port.value] = at + 1

    def _some(self, node: Node, value: int, dims: Dims, times: Interval, where: Condition) -> Iterator[Usage]:
        """A usage under those strategies whose collectives meet a condition."""
        table, whole = self.tables[node.id], self.graph.values[value].bytes
        key = (id(table), dims, whole, where)
        if key not in self.known:
            needed = np.array([where(found) for found in table.sums])
            self.known[key] = self._bytes(node, value, dims, spec_of) * needed
        if self.known[key].any():
            yield Usage(node.id, times[0], times[1] + 1, self.known[key])

    def _bytes(self, node: Node, value: int, dims: Dims, spec: Spelled) -> Floats:
        """Of a value on one device, per strategy of its node."""
        table, whole = self.tables[node.id], self.graph.values[value].bytes
        key = (id(table), dims, whole, spec)
        if key not in self.known:
            found = table.strategies
            self.known[key] = np.array([whole / pieces(spec(dims, s), self.sizes) for s in found])
        return self.known[key]


def _is_looped(found: Sequence[Transfer]) -> bool:
    """Whether a sum is finished by a loop around the parts of its matmul."""
    return any(one.kind == "reduce_scatter" and one.ring != 1.0 for one in found)


def _is_unfinished(found: Sequence[Transfer]) -> bool:
    """Whether there are partial sums in one piece; a loop has one part at a time."""
    return any(one.kind in ("all_reduce", "reduce_scatter") and one.ring == 1.0 for one in found)
