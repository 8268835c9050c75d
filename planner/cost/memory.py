"""Bytes over time: what a device holds under each strategy, as the usages of a Problem.

    the step's arguments      all the time; a result that replaces one is written into its memory
    buffers                   while they are held (`planner.graph.buffers`), under the spec their node gives them
    unfinished sums           beside the finished ones, while the collective runs

Copies that are brought into another spec are usages of edges, and counted there.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.problem import Usage
from planner.graph.buffers import Fusion, buffers
from planner.graph.coarsen import Coarse, Node
from planner.graph.graph import Graph
from planner.graph.rule import Dims
from planner.sharding.spec import pieces, ways
from planner.sharding.strategy import Strategy, result_spec, spec_of

Floats = NDArray[np.float64]
FUSION = {"cpu": Fusion(matmuls=False), "gpu": Fusion(matmuls=False), "tpu": Fusion(matmuls=True)}


def node_usages(
    graph: Graph, coarse: Coarse, strategies: Sequence[tuple[Strategy, ...]], kind: str, sizes: Mapping[str, int]
) -> list[Usage]:
    """The usages of all nodes. strategies: of each node, one tuple for all nodes of a signature, so that their
    usages share arrays. kind: of the chip. sizes: of the mesh axes."""
    return list(_Usages(graph, strategies, sizes).of(coarse, kind))


class _Usages:
    def __init__(
        self, graph: Graph, strategies: Sequence[tuple[Strategy, ...]], sizes: Mapping[str, int]
    ) -> None:
        self.graph, self.strategies, self.sizes = graph, strategies, sizes
        self.made: dict[tuple, Floats] = {}

    def of(self, coarse: Coarse, kind: str) -> Iterator[Usage]:
        held = buffers(self.graph, FUSION[kind])
        replacing = {leaf.value for leaf in self.graph.results if leaf.partner is not None}
        made = {value: i for i, op in enumerate(self.graph.ops) for value in op.results}
        end = len(self.graph.ops) + 1
        for node in coarse.nodes:
            if node.kind == "copy":
                continue
            finished = [(port.value, port.dims, True) for port in node.outputs]
            for value, dims, is_output in (*finished, *((value, dims, False) for value, dims in node.inner)):
                if node.kind in ("leaf", "const"):
                    yield Usage(node.id, 0, end, self._bytes(node, value, dims, finished=True))
                elif value in held and value not in replacing:
                    first, last = held[value]
                    yield Usage(node.id, first, last + 1, self._bytes(node, value, dims, is_output))
            for total in node.sums:
                unfinished = self._unfinished(node, total.value, total.dims, total.reduced)
                if unfinished.any():
                    at = made[total.value]
                    yield Usage(node.id, at, at + 1, unfinished)

    def _bytes(self, node: Node, value: int, dims: Dims, finished: bool) -> Floats:
        """Of a value on one device, per strategy of its node."""
        found, whole = self.strategies[node.id], self.graph.values[value].bytes
        key = (id(found), dims, whole, finished)
        if key not in self.made:
            spec = result_spec if finished else spec_of
            self.made[key] = np.array([whole / pieces(spec(dims, s), self.sizes) for s in found])
        return self.made[key]

    def _unfinished(self, node: Node, value: int, dims: Dims, reduced: tuple[str, ...]) -> Floats:
        """Of the partial sums that a collective finishes, per strategy; those of scalars are nothing."""
        found, whole = self.strategies[node.id], self.graph.values[value].bytes
        key = (id(found), dims, whole, reduced)
        if key not in self.made:
            split = [ways([a for f in reduced for a in s.axes(f)], self.sizes) > 1 for s in found]
            small = whole <= self.graph.values[value].itemsize
            self.made[key] = self._bytes(node, value, dims, finished=False) * (np.array(split) & (not small))
        return self.made[key]
