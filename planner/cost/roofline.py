"""Seconds of the local work of one node, by the roofline.

    seconds = overhead + max(FLOPs / (peak * matmul efficiency * useful part), bytes / achieved bandwidth)

A block reads its inputs and writes its outputs once: XLA fuses what lies between. A matmul unit works on
tiles, so local extents are padded: contraction and columns to the width of the unit, rows to 8 sublanes
(which operand gives the rows is the compiler's choice: the cheaper one is taken). Source: "How to Scale Your
Model", the chapters on TPUs and rooflines. Results leave it at a rate of their own, which a short contraction
(a small head, a convolution of few features) waits for. A GPU computes tiles of the result, one a
multiprocessor at a time: the last wave of them is not full (NVIDIA, "Matrix multiplication background"). An
attention kernel reaches a part of the peak of its own; its matmuls contract the width of a head, or make it.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from meshes.machine import Machine
from planner.graph.coarsen import Node
from planner.graph.graph import Graph, Op
from planner.graph.tiles import CONVOLUTION
from planner.sharding.spec import pieces, ways
from planner.sharding.strategy import Strategy, result_spec, spec_of

_SUBLANES, _LANES = 8, 128  # of a tile of a TPU's vector unit
_TILE = 128  # rows and columns of a result that a multiprocessor makes at a time
MATMULS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general"})
ATTENTION = frozenset({"dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper"})
_FREE = frozenset({"scan_slice", "scan_stack", "loop_carry", "cond_join"})  # they only tie specs together
_SCANNED = frozenset({"scan_slice", "scan_stack"})
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
    touched: Mapping[int, float] | None = None,
) -> list[float]:
    """Seconds of all runs of a node in one step on one device, per strategy. primitive: of its first op.
    touched: see `touched_parts`."""
    if node.kind == "leaf" and not node.inputs:  # a batch is written into memory afresh for every step
        whole = graph.values[node.outputs[0].value].bytes
        rate = machine.hbm_bandwidth * machine.hbm_efficiency
        return [whole / _share(node, strategy, sizes) / rate for strategy in strategies]
    if node.kind in ("leaf", "const", "copy") or primitive in _FREE:
        return [0.0] * len(strategies)
    ports = (*node.inputs, *node.outputs)
    peak = machine.peak_flops(graph.values[ports[0].value].dtype) if ports else math.inf
    useful = [1.0] * len(strategies)
    least = [0.0] * len(strategies)
    if primitive in MATMULS:
        peak *= machine.matmul_efficiency
        if node.inputs[1:]:  # not of an array and itself
            local = _local(node, strategies, sizes)
            useful = [_useful_part(one, machine) for one in local]
            least = [_result_seconds(one, primitive, machine) for one in local]
    if primitive in ATTENTION:
        peak *= machine.attention_efficiency
        width = graph.values[node.inputs[0].value].shape[-1]
        useful = [_useful(width, machine.mxu_dim or 1)] * len(strategies)
    moved = _bytes_moved(node, primitive, graph, strategies, sizes, touched or {})
    return [
        node.repeat
        * max(
            machine.launch_seconds,
            machine.overhead_seconds
            + max(
                node.flops / (_share(node, strategy, sizes) * peak * part),
                count / (machine.hbm_bandwidth * machine.hbm_efficiency),
                results,
            ),
        )
        for strategy, part, count, results in zip(strategies, useful, moved, least, strict=True)
    ]


def touched_parts(ops: Iterable[Op], graph: Graph) -> dict[int, float]:
    """The part of a value that one run of a node reads or writes, where that is not all of it: a loop takes
    one slice of what it scans over, and writes one slice of what it stacks, an iteration."""
    found: dict[int, float] = {}
    for op in ops:
        if op.primitive in _SCANNED:
            value = op.operands[0] if op.primitive == "scan_slice" else op.results[0]
            if value is not None:
                found[value] = 1.0 / max(graph.values[value].shape[0], 1)
    return found


def _share(node: Node, strategy: Strategy, sizes: Mapping[str, int]) -> int:
    return math.prod(ways(axes, sizes) for axes in strategy.split.values())


def _bytes_moved(
    node: Node,
    primitive: str,
    graph: Graph,
    strategies: Sequence[Strategy],
    sizes: Mapping[str, int],
    touched: Mapping[int, float],
) -> list[float]:
    """Bytes read and written by one run on one device, per strategy."""
    sparse = primitive in _SPARSE
    inputs = node.inputs[1:] if sparse else node.inputs
    outputs = () if sparse and primitive.startswith("scatter") else node.outputs
    shares = functools.cache(lambda spec: pieces(spec, sizes))  # few specs, many strategies
    totals = [0.0] * len(strategies)
    for port, spec, times in (
        *((p, spec_of, 1) for p in inputs),
        *((p, result_spec, 1 + sparse) for p in outputs),
    ):
        whole = times * graph.values[port.value].bytes * touched.get(port.value, 1.0)
        for i, strategy in enumerate(strategies):
            totals[i] += whole / shares(spec(port.dims, strategy))
    return totals


@dataclasses.dataclass(frozen=True)
class _Extents:
    """Of a matmul on one device."""

    rows: int
    columns: int
    batch: int
    depth: int


def _local(node: Node, strategies: Sequence[Strategy], sizes: Mapping[str, int]) -> list[_Extents]:
    """The extents of a matmul, per strategy."""
    extents = dict(node.sizes)
    left, right = ({f for dim in port.dims for f in dim} for port in node.inputs[:2])
    reduced = set(node.sums[0].reduced) if node.sums else set()
    kinds = (left - right - reduced, right - left - reduced, (left & right) - reduced, reduced)

    def extent(factors: set[str], strategy: Strategy) -> int:
        return math.prod(extents[f] // ways(strategy.axes(f), sizes) for f in factors)

    return [_Extents(*(extent(factors, strategy) for factors in kinds)) for strategy in strategies]


def _useful_part(local: _Extents, machine: Machine) -> float:
    """The part of a matmul unit's work that is not padding or waiting."""
    width, cores = machine.mxu_dim, machine.multiprocessors
    if cores:
        return _waves(local.rows, local.columns, local.batch, cores)
    if not width:
        return 1.0
    as_they_stand = _useful(local.rows, _SUBLANES) * _useful(local.columns, width)
    transposed = _useful(local.rows, width) * _useful(local.columns, _SUBLANES)
    return _useful(local.depth, width) * max(as_they_stand, transposed)


def _result_seconds(local: _Extents, primitive: str, machine: Machine) -> float:
    """What the results of a matmul take to leave the matrix unit, in whole tiles. A convolution has its
    features along the lanes. 0 for a chip of which nothing is known."""
    rate = machine.chip.numbers.get("matmul_results_per_s")
    if rate is None:
        return 0.0
    useful = _useful(local.rows, _SUBLANES) * _useful(local.columns, _LANES)
    if primitive != CONVOLUTION:
        useful = max(useful, _useful(local.rows, _LANES) * _useful(local.columns, _SUBLANES))
    results = local.batch * local.rows * local.columns / useful
    return results * machine.chip.devices_per_chip / rate


def _waves(rows: int, columns: int, batch: int, cores: int) -> float:
    """The part of the multiprocessors' time that goes into tiles of the result. Where there are fewer tiles
    than multiprocessors the contraction is cut too (split-K), and all have work."""
    tiles = batch * math.ceil(rows / _TILE) * math.ceil(columns / _TILE)
    waves = math.ceil(tiles / cores) if tiles > cores else tiles / cores
    return _useful(rows, _TILE) * _useful(columns, _TILE) * tiles / (waves * cores)


def _useful(extent: int, tile: int) -> float:
    return extent / (math.ceil(extent / tile) * tile)
