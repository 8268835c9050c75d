"""Seconds and bytes of a row's step, from the same graph, tables and prices that plans are made of.

    trace -> coarsen -> tables of the mesh -> the best choice inside the row's layout -> its parts -> seconds

The parts of one micro-batch are summed per loop: forward layers, backward layers, and the rest. Overlap is a
bound, all of it in `seconds_of`: what a runtime runs beside compute costs what compute does not cover.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from meshes.mesh import mesh_of
from planner.cost.restrict import restrict, widen
from planner.cost.tables import Tables, build
from planner.cost.traffic import Network, Transfer, finishes, moves
from planner.graph.coarsen import Coarse, Node, coarsen
from planner.graph.graph import Graph, Path
from planner.graph.labels import ATTRIBUTE, SAMPLE
from planner.jax_compat import trace_step
from planner.planning import Decided, peak_bytes
from planner.sharding import named
from planner.sharding.spec import pieces
from planner.sharding.strategy import Strategy
from planner.simulate.policy import policy_of
from planner.solvers import auto
from planner.trace import build_graph
from scripts.published.layout import CannotPredict, Layout
from scripts.published.model import stage_of
from scripts.published.transformer import Shape, train_step

SOLVE_SECONDS = 10.0
# What XLA lets a program have of a GPU's or TPU's memory, about.
USABLE_FRACTION = 0.9
LOOP_ENDS = frozenset(("scan_slice", "scan_stack", "loop_carry"))
_EXAMPLES = frozenset((SAMPLE, ATTRIBUTE))  # of a batch of one only the sequence has a dim to split


@dataclasses.dataclass
class Loop:
    """Seconds of one micro-batch in one loop, or outside of loops. beside: of collectives that run while
    something is computed, which takes `slowed` seconds longer for it; alone: of those that do not."""

    compute: float = 0.0
    beside: float = 0.0
    alone: float = 0.0
    slowed: float = 0.0

    @property
    def seconds(self) -> float:
        """What compute does not cover is waited for."""
        return max(self.compute + self.slowed, self.beside) + self.alone


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
    lookup: float
    stacked: float
    flops: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """seconds: of a step. peak: bytes on one device; limit: what it has. parts: where the time goes."""

    seconds: float
    peak: float
    limit: float
    parts: Parts


def predict(shape: Shape, layout: Layout, default_remat: bool = False) -> Prediction:
    """The step of a whole model under a layout. default_remat: nothing is known of what the backward pass
    computes again: everything, if else the step would not fit."""
    stage = stage_of(shape, layout.stages, layout.micro)
    parts = parts_of(stage, layout)
    if default_remat and parts.peak > USABLE_FRACTION * layout.machine.memory_bytes:
        stage = dataclasses.replace(stage, saved=frozenset())
        parts = parts_of(stage, layout)
    seconds, peak = (
        seconds_of(stage, layout, parts, shape.layers),
        _peak_of_stage(stage, layout, parts, shape.layers),
    )
    return Prediction(seconds, peak, layout.machine.memory_bytes, parts)


def _peak_of_stage(stage: Shape, layout: Layout, parts: Parts, total_layers: int) -> float:
    """Bytes on one device of the last stage: of several, it has the output matrix and no table of tokens,
    and its share of the layers where stages are cut evenly."""
    if layout.stages == 1:
        return parts.peak
    spared = 1 - _even(stage, layout, total_layers) if layout.runtime.balances else 0.0
    return parts.peak - parts.lookup - spared * parts.stacked


def _even(stage: Shape, layout: Layout, total_layers: int) -> float:
    """Layers of a stage if all have equally many, over those of the largest."""
    return total_layers / layout.stages / stage.layers


@functools.lru_cache(maxsize=4)
def _graph(shape: Shape) -> tuple[Graph, Coarse]:
    step, args = train_step(shape)
    graph = build_graph(trace_step(step, args))
    return graph, coarsen(graph)


@dataclasses.dataclass(frozen=True)
class _Job:
    """What the parts depend on. key: all of the layout but its micro-batches and stages."""

    shape: Shape
    key: tuple
    layout: Layout = dataclasses.field(compare=False)


def parts_of(shape: Shape, layout: Layout) -> Parts:
    """The parts of one micro-batch and of the update; rows that differ in the number of micro-batches share
    them."""
    axes, roles = tuple(layout.axes.items()), tuple(layout.roles.items())
    machine = (layout.machine, layout.machine.topology, layout.machine.peak_flops(shape.dtype))
    return _parts(_Job(shape, (machine, axes, roles, layout.free, layout.forced, layout.runtime), layout))


@functools.cache
def _parts(job: _Job) -> Parts:
    shape, layout = job.shape, job.layout
    graph, coarse = _graph(shape)
    network = Network(layout.machine, mesh_of(layout.machine, layout.axes))
    tables = build(graph, coarse, network, USABLE_FRACTION * layout.machine.memory_bytes)
    users: dict[int, list[Node]] = collections.defaultdict(list)
    for link in coarse.links:
        users[link.maker].append(coarse.nodes[link.user])
    sorts = named.sorts(coarse.nodes, users)
    if shape.master:
        sorts |= _sorts_by_use(graph, coarse, sorts)
    for node in coarse.nodes:
        if sorts[node.id] in ("state", "update") and _EXAMPLES.intersection(dict(node.labels).values()):
            sorts[node.id] = "op" if node.kind == "op" else "activation"
    kept = _kept(coarse, tables, sorts, {} if layout.free else layout.roles, _slices(graph, coarse))
    if layout.forced:
        kept = [
            _with_batch_on(node, table.strategies, indices, "dp")
            for node, table, indices in zip(coarse.nodes, tables.nodes, kept, strict=True)
        ]
    problem = restrict(tables.problem, kept)
    if not layout.free:
        problem = dataclasses.replace(problem, usage_limit=math.inf)
    inside = auto.solve(problem, seconds=SOLVE_SECONDS)
    if not math.isfinite(inside.cost):
        raise CannotPredict("the layout does not divide the arrays of the step evenly")
    return _sum_up(Decided(graph, coarse, tables, widen(inside.choice, kept)), layout)


def _with_batch_on(node: Node, strategies: Sequence[Strategy], indices: np.ndarray, axis: str) -> np.ndarray:
    """Those of some strategies that split examples over one axis, where it does, and over no other."""
    examples = [factor for factor, label in node.labels if label == SAMPLE]
    used = {int(i): {a for f in examples for a in strategies[i].axes(f)} for i in indices}
    most = max((len(axes & {axis}) for axes in used.values() if axes <= {axis}), default=0)
    found = [i for i, axes in used.items() if axes <= {axis} and len(axes) == most]
    return np.array(found, dtype=np.int64) if found else indices


def _sorts_by_use(graph: Graph, coarse: Coarse, sorts: Mapping[int, named.Sort]) -> dict[int, named.Sort]:
    """Sorts of nodes where the weights in use are kept beside float32 ones: only the optimizer sees these and
    what it computes, which is all of the state that no loop touches."""
    paths = {leaf.value: leaf.path for leaf in graph.arguments}
    inside = {op.id for op in graph.ops if op.region or op.primitive in LOOP_ENDS}
    found: dict[int, named.Sort] = {}
    for node in coarse.nodes:
        path = paths.get(node.outputs[0].value, "") if node.kind == "leaf" else ""
        if ".used" in path:
            found[node.id] = "parameter"
        elif ".params" in path or (sorts[node.id] == "state" and not inside.intersection(node.ops)):
            found[node.id] = "moment"
    return found


def _slices(graph: Graph, coarse: Coarse) -> frozenset[int]:
    """The nodes that take slices of weights for a loop, and may round them."""
    primitive = {op.id: op.primitive for op in graph.ops}
    return frozenset(
        node.id
        for node in coarse.nodes
        if node.ops
        and any(primitive[op] == "scan_slice" for op in node.ops)
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

    regions = sorted(set(region.values()) - {()}, key=len)
    reader = {link.maker: coarse.nodes[link.user] for link in reversed(coarse.links)}

    def region_of(node: Node) -> Path:
        while node.kind == "copy":  # stands where the first of those that read it does
            node = reader[node.id]
        return _outermost(region[node.ops[0]], regions) if node.ops else ()

    def where(node: Node) -> Loop:
        return loops[region_of(node)]

    together: dict[tuple, list[Transfer]] = collections.defaultdict(list)

    def placed(one: Transfer, node: Node, examples: bool) -> None:
        is_gradient = not examples and one.value in from_data
        if is_gradient and node.kind == "leaf":
            together["regathered", one.kind, one.axes].append(one)
        elif is_gradient and not _each(one, layout):
            split = one.kind == "all_reduce" and all(layout.roles[axis] == "zero1" for axis in one.axes)
            kind = "reduce_scatter" if split else one.kind  # each device updates a part: it needs no more
            together["synced", kind, one.axes].append(dataclasses.replace(one, kind=kind))
        elif not examples and layout.machine.chip.kind == "gpu":
            together[region_of(node), one.kind, one.axes, one.times, is_gradient].append(one)
        else:
            during(where(node), one, examples, is_gradient, one.times * network.run_seconds(one))

    def during(loop: Loop, one: Transfer, examples: bool, is_gradient: bool, seconds: float) -> None:
        if _hides(layout, one, examples, is_gradient):
            loop.beside += seconds
            loop.slowed += seconds * _slowdown(network, one)
        else:
            loop.alone += seconds

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
    for (place, *_), several in together.items():
        if isinstance(place, str):
            once[place] += _in_one(several, network, 1.0)
        else:
            seconds = several[0].times * _in_one(several, network, several[0].times)
            during(loops[place], several[0], False, several[0].value in from_data, seconds)
    outer = loops.pop((), Loop())
    flops = sum(
        node.flops * node.repeat / math.prod(decided.sizes[a] for s in strategy.split.values() for a in s)
        for node, strategy in zip(coarse.nodes, decided.strategy, strict=True)
    )
    kept = {name: _kept_bytes(decided, name) for name in ("tokens", "layers")}
    return Parts(
        tuple(loops.values()),
        outer,
        **once,
        peak=peak_bytes(decided),
        lookup=kept["tokens"],
        stacked=kept["layers"],
        flops=flops,
    )


def _kept_bytes(decided: Decided, name: str) -> float:
    """Bytes on one device of what the state has of some parameters, with their moments and copies."""
    graph = decided.graph
    leaves = [leaf for leaf in graph.arguments if leaf.partner is not None and f".{name}" in leaf.path]
    return sum(
        graph.values[leaf.value].bytes / pieces(decided.spec(leaf.value), decided.sizes) for leaf in leaves
    )


def _outermost(region: Path, regions: Sequence[Path]) -> Path:
    """The outermost loop around a loop. regions: of all loops, the shorter first."""
    return next((outer for outer in regions if region[: len(outer)] == outer), region)


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


def _in_one(several: Sequence[Transfer], network: Network, times: float) -> float:
    """Seconds of collectives that runtimes put into one: the weights or gradients of a layer, or of a step.
    times: how often that one runs."""
    count = sum(one.ring * one.bytes * one.times for one in several) / times
    return network.seconds(several[0].kind, several[0].axes, count)


def _each(one: Transfer, layout: Layout) -> bool:
    """Whether the gradients that a collective reduces are reduced in each micro-batch: those kept split."""
    return "fsdp" in one.axes and layout.roles["fsdp"] == "fsdp"


def _hides(layout: Layout, one: Transfer, examples: bool, is_gradient: bool) -> bool:
    """Whether a collective runs beside compute. A reduce-scatter that a TPU writes as a loop around the parts
    of a matmul is made of permutes."""
    if layout.machine.chip.kind == "tpu":
        return ("permute" if one.ring != 1.0 else one.kind) in layout.machine.chip.asynchronous
    if examples:
        return layout.runtime.hides_sums
    return layout.runtime.hides_reductions if is_gradient else layout.runtime.hides_gathers


def _slowdown(network: Network, one: Transfer) -> float:
    """The part of the compute that a collective takes meanwhile."""
    found = policy_of(network.machine).slowdown
    kinds = {wire.kind for axis in one.axes for wire in network.mesh.wires[network.mesh.axes.index(axis)]}
    return max(
        (found.get(kind, 0.0) for kind in kinds if "network" not in kinds or kind == "network"), default=0
    )


def seconds_of(shape: Shape, layout: Layout, parts: Parts, total_layers: int) -> float:
    """Seconds of a step. shape: of the largest stage; total_layers: of all of them.

    Micro-batches follow each other on the slowest stage, the one with the output matrix, or on any if the
    runtime cuts stages of equal length; filling and draining
    the pipeline takes (stages - 1) / chunks of a stage's layers more. A stage sends its activations on and
    waits for them. Gradients that are reduced once a step run under the last backward pass if the runtime
    hides them, and the weights it brought back into place are gathered beside the first forward pass.
    """
    layers, outer = sum(loop.seconds for loop in parts.loops), parts.outer.seconds
    if layout.runtime.balances:
        layers, outer = layers * _even(shape, layout, total_layers) + outer / layout.stages, 0.0
    total = layout.runs * (layers + outer)
    if layout.stages > 1:
        total += (layout.stages - 1) / layout.chunks * layers
        total += layout.runs * layout.chunks * 2 * _hop_seconds(shape, layout)
    behind = max((loop.compute for loop in parts.loops), default=0.0)
    hides = layout.runtime.hides_reductions and layout.machine.chip.kind != "tpu"
    synced = max(0.0, parts.synced - behind) if hides else parts.synced
    ahead = min((loop.compute for loop in parts.loops), default=0.0)
    hides = layout.runtime.hides_gathers and layout.machine.chip.kind != "tpu"
    regathered = max(0.0, parts.regathered - ahead) if hides else parts.regathered
    return total + synced + parts.update + regathered


def _hop_seconds(shape: Shape, layout: Layout) -> float:
    """Seconds to send one micro-batch's activations to the next stage, each device its share."""
    data = math.prod(size for axis, size in layout.axes.items() if axis != "tp")
    count = shape.batch // data * shape.seq * shape.d_model * np.dtype("float16").itemsize
    return count / layout.axes.get("tp", 1) / layout.hop_rate
