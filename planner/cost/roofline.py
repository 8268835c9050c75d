"""Seconds of the local work of one node, by the roofline.

    seconds = overhead + max(FLOPs / (peak * matmul efficiency * padding), bytes / HBM bandwidth)

A block reads its inputs and writes its outputs once: XLA fuses what lies between. A matmul unit works on
tiles, so local extents are padded: contraction and columns to the width of the unit, rows to 8 sublanes
(which operand gives the rows is the compiler's choice: the cheaper one is taken). Source: "How to Scale Your
Model", the chapters on TPUs and rooflines.
"""

import math
from collections.abc import Mapping, Sequence

from meshes.machine import Machine
from planner.graph.coarsen import Node
from planner.graph.graph import Graph
from planner.sharding.spec import pieces, ways
from planner.sharding.strategy import Strategy, result_spec, spec_of

_SUBLANES = 8
_MATMULS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
# These touch only the part of their first operand that they read or write.
_SPARSE = frozenset(
    {"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "scatter-add", "scatter_add"}
)


def work_seconds(
    node: Node,
    primitive: str,
    graph: Graph,
    strategies: Sequence[Strategy],
    machine: Machine,
    sizes: Mapping[str, int],
) -> list[float]:
    """Seconds of all runs of a node in one step on one device, per strategy. primitive: of its first op."""
    if node.kind == "leaf" and not node.inputs:  # a batch is written into memory afresh for every step
        whole = graph.values[node.outputs[0].value].bytes
        return [whole / _share(node, strategy, sizes) / machine.hbm_bandwidth for strategy in strategies]
    if node.kind in ("leaf", "const", "copy") or primitive in (
        "scan_slice",
        "scan_stack",
        "loop_carry",
        "cond_join",
    ):
        return [0.0] * len(strategies)
    first = node.inputs[0] if node.inputs else node.outputs[0] if node.outputs else None
    peak = machine.peak_flops(graph.values[first.value].dtype) if first else math.inf
    matmul = primitive in _MATMULS
    if matmul:
        peak *= machine.matmul_efficiency
    return [
        node.repeat
        * (
            machine.overhead_seconds
            + max(
                node.flops
                / _share(node, strategy, sizes)
                / (peak * (_padding(node, strategy, machine, sizes) if matmul else 1.0)),
                _bytes_moved(node, primitive, graph, strategy, sizes) / machine.hbm_bandwidth,
            )
        )
        for strategy in strategies
    ]


def _share(node: Node, strategy: Strategy, sizes: Mapping[str, int]) -> int:
    return math.prod(ways(axes, sizes) for axes in strategy.split.values())


def _bytes_moved(
    node: Node, primitive: str, graph: Graph, strategy: Strategy, sizes: Mapping[str, int]
) -> float:
    inputs = node.inputs[1:] if primitive in _SPARSE else node.inputs
    read = sum(graph.values[p.value].bytes / pieces(spec_of(p.dims, strategy), sizes) for p in inputs)
    written = sum(
        graph.values[p.value].bytes / pieces(result_spec(p.dims, strategy), sizes) for p in node.outputs
    )
    if primitive in _SPARSE and primitive.startswith("scatter"):
        written = 0.0
    return read + (2 if primitive in _SPARSE else 1) * written


def _padding(node: Node, strategy: Strategy, machine: Machine, sizes: Mapping[str, int]) -> float:
    """The fraction of a matmul unit's work that is not padding."""
    width = machine.mxu_dim
    if not width or len(node.inputs) < 2:
        return 1.0
    extents = dict(node.sizes)
    left, right = ({f for dim in port.dims for f in dim} for port in node.inputs[:2])
    reduced = set(node.sums[0].reduced) if node.sums else set()

    def extent(factors: set[str]) -> int:
        return math.prod(extents[f] // ways(strategy.axes(f), sizes) for f in factors)

    contraction, rows, columns = (
        extent(reduced),
        extent(left - right - reduced),
        extent(right - left - reduced),
    )
    best = max(
        _useful(rows, _SUBLANES) * _useful(columns, width), _useful(rows, width) * _useful(columns, _SUBLANES)
    )
    return _useful(contraction, width) * best


def _useful(extent: int, tile: int) -> float:
    return extent / (math.ceil(extent / tile) * tile)
