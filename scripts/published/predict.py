"""Seconds and bytes of a row's step, from the same graph, tables and prices that plans are made of.

    trace -> coarsen -> tables of the mesh -> the best choice inside the row's layout -> its parts -> seconds

The parts of one micro-batch are summed per loop: forward layers, backward layers, and the rest. Overlap is a
bound, all of it in `seconds_of`: what a runtime runs beside compute costs what compute does not cover.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from meshes.mesh import mesh_of
from planner.cost.restrict import restrict, widen
from planner.cost.tables import Tables, build
from planner.cost.traffic import Network, Transfer, finishes, moves
from planner.graph.coarsen import Coarse, Node, coarsen
from planner.graph.graph import Graph
from planner.graph.labels import ATTRIBUTE, SAMPLE
from planner.jax_compat import trace_step
from planner.planning import Decided, peak_bytes
from planner.sharding import named
from planner.solvers import auto
from planner.trace import build_graph
from scripts.published.layout import CannotPredict, Layout
from scripts.published.model import stage_of
from scripts.published.transformer import Shape, train_step

SOLVE_SECONDS = 10.0
_EXAMPLES = frozenset((SAMPLE, ATTRIBUTE))  # of a batch of one only the sequence has a dim to split


@dataclasses.dataclass
class Loop:
    """Seconds of one micro-batch in one loop, or outside of loops. gathers: of weights; reductions: of
    gradients; sums: of activations."""

    compute: float = 0.0
    gathers: float = 0.0
    reductions: float = 0.0
    sums: float = 0.0


@dataclasses.dataclass(frozen=True)
class Parts:
    """Where the time of a step goes. loops: of one micro-batch; outer: the same outside of loops; update: the
    optimizer, once a step; synced: gradients that are reduced once a step; regathered: weights that are
    brought back into place after the update."""

    loops: tuple[Loop, ...]
    outer: Loop
    update: float
    synced: float
    regathered: float
    peak: float
    flops: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """seconds: of a step. peak: bytes on one device; limit: what it has. parts: where the time goes."""

    seconds: float
    peak: float
    limit: float
    parts: Parts


def predict(shape: Shape, layout: Layout) -> Prediction:
    """The step of a whole model under a layout."""
    stage = stage_of(shape, layout.stages, layout.micro)
    parts = parts_of(stage, layout)
    return Prediction(seconds_of(stage, layout, parts), parts.peak, layout.machine.memory_bytes, parts)


@functools.lru_cache(maxsize=4)
def _graph(shape: Shape) -> tuple[Graph, Coarse]:
    step, args = train_step(shape)
    graph = build_graph(trace_step(step, args))
    return graph, coarsen(graph)


def _key(layout: Layout) -> tuple:
    return layout.machine, tuple(layout.axes.items()), tuple(layout.roles.items()), layout.gathers


_known: dict[tuple, Parts] = {}


def parts_of(shape: Shape, layout: Layout) -> Parts:
    """The parts of one micro-batch and of the update; rows that differ in the number of micro-batches share
    them."""
    key = (shape, _key(layout), layout.machine.topology)
    if key not in _known:
        _known[key] = _parts(shape, layout)
    return _known[key]


def _parts(shape: Shape, layout: Layout) -> Parts:
    graph, coarse = _graph(shape)
    network = Network(layout.machine, mesh_of(layout.machine, layout.axes))
    tables = build(graph, coarse, network, math.inf)
    users: dict[int, list[Node]] = collections.defaultdict(list)
    for link in coarse.links:
        users[link.maker].append(coarse.nodes[link.user])
    sorts = named.sorts(coarse.nodes, users)
    for node in coarse.nodes:
        if sorts[node.id] in ("state", "update") and _EXAMPLES.intersection(dict(node.labels).values()):
            sorts[node.id] = "op" if node.kind == "op" else "activation"
    kept = _kept(coarse, tables, sorts, layout.roles, _slices(graph, coarse))
    inside = auto.solve(restrict(tables.problem, kept), seconds=SOLVE_SECONDS)
    if not math.isfinite(inside.cost):
        raise CannotPredict("the layout does not divide the arrays of the step evenly")
    return _sum_up(Decided(graph, coarse, tables, widen(inside.choice, kept)), layout)


def _slices(graph: Graph, coarse: Coarse) -> frozenset[int]:
    """The nodes that only take slices of weights for a loop."""
    primitive = {op.id: op.primitive for op in graph.ops}
    return frozenset(
        node.id
        for node in coarse.nodes
        if node.ops
        and all(primitive[op] == "scan_slice" for op in node.ops)
        and not _EXAMPLES.intersection(dict(node.labels).values())
    )


def _kept(
    coarse: Coarse,
    tables: Tables,
    sorts: Mapping[int, named.Sort],
    roles: Mapping[str, str],
    slices: frozenset[int],
) -> list[np.ndarray]:
    """The strategies a layout leaves to each node. A slice of the weights is taken where they are kept: what
    gathers weights gathers a layer at a time."""
    shared: dict[tuple, np.ndarray] = {}
    whole = {axis for axis, role in roles.items() if role == "fsdp"}
    kept = []
    for node, table in zip(coarse.nodes, tables.nodes, strict=True):
        key = (id(table), sorts[node.id], node.labels, node.id in slices)
        if key not in shared:
            found = named.allowed(node, sorts[node.id], table.strategies, roles)
            if whole and node.id in slices:
                used = {i: whole & {a for s in table.strategies[i].split.values() for a in s} for i in found}
                most = max(map(len, used.values()), default=0)
                found = tuple(i for i in found if len(used[i]) == most)
            shared[key] = np.array(found, dtype=np.int64)
        if not len(shared[key]):
            raise CannotPredict("the layout does not divide the arrays of the step evenly")
        kept.append(shared[key])
    return kept


def _sum_up(decided: Decided, layout: Layout) -> Parts:
    graph, coarse, tables = decided.graph, decided.coarse, decided.tables
    network = tables.network
    region = {op.id: op.region for op in graph.ops}
    primitive = {op.id: op.primitive for op in graph.ops}
    loops: dict[tuple, Loop] = collections.defaultdict(Loop)
    once = {"update": 0.0, "synced": 0.0, "regathered": 0.0}
    from_data = _from_data(graph)

    def where(node: Node) -> Loop:
        return loops[region[node.ops[0]] if node.ops else ()]

    def placed(one: Transfer, node: Node, examples: bool) -> None:
        seconds = one.times * network.run_seconds(one)
        if examples:
            where(node).sums += seconds
        elif one.value not in from_data:
            where(node).gathers += seconds
        elif node.kind == "leaf":
            once["regathered"] += seconds
        elif "fsdp" in one.axes and layout.roles["fsdp"] == "fsdp":
            where(node).reductions += seconds
        else:
            once["synced"] += seconds

    for node, table, choice in zip(coarse.nodes, tables.nodes, decided.choice, strict=True):
        seconds = float(table.work[choice])
        labels = dict(node.labels)
        if _EXAMPLES.intersection(labels.values()) or (node.ops and node.repeat > 1):
            where(node).compute += seconds
        else:
            once["update"] += seconds
        for one in finishes(
            node, primitive[node.ops[0]] if node.ops else "", graph, decided.strategy[node.id], network
        ):
            total = next((s for s in node.sums if s.value == one.value), None)
            placed(one, node, total is not None and _sees(total.dims, labels))
    for link in coarse.links:
        node = coarse.nodes[link.user]
        port = node.inputs[link.into]
        maker = coarse.nodes[link.maker]
        examples = _sees(port.dims, dict(node.labels)) or _sees(
            maker.outputs[link.out].dims, dict(maker.labels)
        )
        rounded = (link.user, link.into) in tables.rounded
        for one in moves(
            port, graph.values[port.value], rounded, decided.made(link), decided.read(link), network
        ):
            placed(one, node, examples)
    outer = loops.pop((), Loop())
    flops = sum(
        node.flops * node.repeat / math.prod(decided.sizes[a] for s in strategy.split.values() for a in s)
        for node, strategy in zip(coarse.nodes, decided.strategy, strict=True)
    )
    return Parts(tuple(loops.values()), outer, **once, peak=peak_bytes(decided), flops=flops)


def _sees(dims: tuple, labels: Mapping[str, str]) -> bool:
    """Whether examples lie along a dim."""
    return any(labels.get(dim[0]) in _EXAMPLES for dim in dims if dim)


def _from_data(graph: Graph) -> set[int]:
    """The values that depend on the batch."""
    found = {leaf.value for leaf in graph.arguments if leaf.partner is None}
    for _ in range(2):  # what a loop carries comes from its end
        for op in graph.ops:
            if found.intersection(op.operands):
                found.update(op.results)
    return found


def _covered(loop: Loop, layout: Layout) -> float:
    """Seconds of a loop: collectives beside compute where the runtime runs them so."""
    runtime, hidden, exposed = layout.runtime, 0.0, 0.0
    for seconds, hides in (
        (loop.gathers, runtime.hides_gathers),
        (loop.reductions, runtime.hides_reductions),
        (loop.sums, runtime.hides_sums),
    ):
        hidden += seconds if hides else 0.0
        exposed += 0.0 if hides else seconds
    return max(loop.compute, hidden) + exposed


def seconds_of(shape: Shape, layout: Layout, parts: Parts) -> float:
    """Seconds of a step.

    Micro-batches follow each other on the slowest stage, the one with the output matrix; filling and draining
    the pipeline takes (stages - 1) / chunks of a stage's layers more. A stage sends its activations on and
    waits for them. Gradients that are reduced once a step run under the last backward pass if the runtime
    hides them.
    """
    layers, outer = sum(_covered(loop, layout) for loop in parts.loops), _covered(parts.outer, layout)
    total = layout.runs * (layers + outer)
    if layout.stages > 1:
        total += (layout.stages - 1) / layout.chunks * layers
        total += layout.runs * layout.chunks * 2 * _hop_seconds(shape, layout)
    behind = max((loop.compute for loop in parts.loops), default=0.0)
    synced = max(0.0, parts.synced - behind) if layout.runtime.hides_reductions else parts.synced
    return total + synced + parts.update + parts.regathered


def _hop_seconds(shape: Shape, layout: Layout) -> float:
    """Seconds to send one micro-batch's activations to the next stage, each device its share."""
    data = math.prod(size for axis, size in layout.axes.items() if axis != "tp")
    count = shape.batch // data * shape.seq * shape.d_model * np.dtype("float16").itemsize
    numbers = layout.machine.chip.numbers
    rate = numbers.get("ib_bandwidth_bytes_per_s_oneway_per_gpu")
    rate = rate or numbers.get("node_egress_bandwidth_bytes_per_s", math.inf) / 8
    return count / layout.axes.get("tp", 1) / rate
