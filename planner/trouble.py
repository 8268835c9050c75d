"""What to say when nothing fits: how many bytes are short, and the cheapest things that would make it fit.

Every remedy is true. The leanest choice that was found is itself the proof that more memory, or as many
examples as fit beside the rest, suffice; more devices are only named after a search on them found a plan.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator

from meshes.machine import Machine, load_machine
from meshes.mesh import LogicalMesh, preferred_meshes
from planner.cost.problem import Problem, Usage, peak_of
from planner.crowded import Crowd, crowd_of, crowd_words, pins_in_the_way
from planner.errors import InfeasibleError, InputError
from planner.graph.coarsen import Coarse, Node, Port
from planner.graph.graph import Graph
from planner.graph.labels import SAMPLE, batch_extent
from planner.inputs import check_batch
from planner.pins import usable_meshes
from planner.planning import Decided, memory_at_peak, peak_bytes
from planner.report.units import memory
from planner.search import Found, Request, search
from planner.sharding.spec import ways
from planner.sharding.strategy import result_spec, spec_of

_MACHINES_TRIED = 3
_SECONDS = 10.0  # for all machines together: an error should not take longer than a plan


def does_not_fit(
    graph: Graph,
    coarse: Coarse,
    found: Found,
    machine: Machine,
    memory_fraction: float,
    request: Request | None = None,
) -> InfeasibleError:
    """The error for a search whose leanest choice exceeds the limit. request: what was searched."""
    best = found.best
    decided = Decided(graph, coarse, best.tables, best.choice.choice)
    peak, limit = peak_bytes(decided), best.tables.problem.usage_limit
    held = memory_at_peak(decided, found.sorts)
    parts = ", ".join(f"{kind} {memory(count)}" for kind, count in sorted(held.items(), key=lambda i: -i[1]))
    pins = request.pins if request else {}
    crowd = crowd_of(graph, coarse, best.tables, pins)
    in_the_way = f" {crowd_words(graph, coarse, crowd)}" if crowd else ""
    remedies = [
        *_fraction(peak, machine, memory_fraction),
        *_pins(decided, machine, request, crowd),
        *_batch(decided, machine, limit),
        *_devices(graph, coarse, machine, memory_fraction, peak / limit, request),
    ] or [f"devices with {math.ceil(peak / memory_fraction)} bytes of memory each"]
    return InfeasibleError(
        f"No plan fits: the leanest one found needs {memory(peak)} per device on {machine.name}, "
        f"{memory(peak - limit)} ({peak - limit:.0f} bytes) more than the limit of {memory(limit)} "
        f"({parts}).{in_the_way} "
        f"What would make it fit: {'; or '.join(remedies)}."
    )


def _fraction(peak: float, machine: Machine, fraction: float) -> list[str]:
    wanted = math.ceil(100 * peak / machine.memory_bytes) / 100
    return [f"memory_fraction={wanted:.2f} instead of {fraction:g}"] if wanted <= 1 else []


def _pins(decided: Decided, machine: Machine, request: Request | None, crowd: Crowd | None) -> list[str]:
    """The fewest pins without which a plan was found."""
    if request is None or crowd is None or not crowd.gain:
        return []
    graph, coarse, mesh = decided.graph, decided.coarse, decided.tables.network.mesh
    gone = pins_in_the_way(graph, coarse, crowd)
    rest = {node: spec for node, spec in request.pins.items() if node not in gone}
    asked = dataclasses.replace(request, pins=rest, seconds=_SECONDS, every_scheme=False)
    if not gone or not _fits(graph, coarse, machine, mesh, asked):
        return []
    names = [graph.values[coarse.nodes[node].outputs[0].value].name for node in gone]
    others = f" and {len(names) - 1} more like it" if len(names) > 1 else ""
    return [f"no pin on {names[0]}{others}"]


def _batch(decided: Decided, machine: Machine, limit: float) -> list[str]:
    """The largest batch, halved as often as needed, with which the leanest choice fits; nothing if none
    does."""
    batch = batch_extent(decided.graph)
    smaller = batch or 0
    while smaller > 2 and smaller % 2 == 0:
        smaller //= 2
        part = smaller / (batch or 1)
        if not _divides(decided, part) or (smaller >= machine.devices and smaller % machine.devices):
            return []
        if peak_of(_with_examples(decided, part), decided.choice) <= limit:
            return [f"a batch of {smaller} instead of {batch}"]
    return []


def _divides(decided: Decided, part: float) -> bool:
    """Whether every dim of examples, made `part` as long, still divides as the choice splits it."""
    for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True):
        ports = [(port, spec_of(port.dims, strategy)) for port in node.inputs]
        ports += [(port, result_spec(port.dims, strategy)) for port in node.outputs]
        for port, spec in ports:
            shape = decided.graph.values[port.value].shape
            for extent, axes, along in zip(shape, spec, _along_examples(node, port), strict=True):
                if along and (extent * part) % ways(axes, decided.sizes):
                    return False
    return True


def _along_examples(node: Node, port: Port) -> list[bool]:
    """Which dims of a value lie along the examples."""
    labels = dict(node.labels)
    return [bool(dim) and labels[dim[0]] == SAMPLE for dim in port.dims]


def _with_examples(decided: Decided, part: float) -> Problem:
    """The problem with `part` as many examples, as far as memory goes."""
    problem, nodes, links = decided.tables.problem, decided.coarse.nodes, decided.coarse.links
    of_examples = {
        node.id: bool(node.outputs) and all(any(_along_examples(node, port)) for port in node.outputs)
        for node in nodes
    }

    def scaled(usage: Usage, node: int) -> Usage:
        return dataclasses.replace(usage, bytes=usage.bytes * part) if of_examples[node] else usage

    def maker(edge: int) -> int:
        value = nodes[links[edge].user].inputs[links[edge].into].value
        return decided.coarse.home[value][0]

    return dataclasses.replace(
        problem,
        node_usages=tuple(scaled(usage, usage.of) for usage in problem.node_usages),
        edge_usages=tuple(scaled(usage, maker(usage.of)) for usage in problem.edge_usages),
    )


def _devices(
    graph: Graph, coarse: Coarse, machine: Machine, fraction: float, times: float, request: Request | None
) -> list[str]:
    """The smallest larger machine of the same chip that was found to be enough."""
    deadline = time.monotonic() + _SECONDS
    for larger in itertools.islice(_larger(machine, times), _MACHINES_TRIED):
        asked = dataclasses.replace(
            request or Request(0.0),
            limit=larger.memory_bytes * fraction,
            seconds=_SECONDS,
            every_scheme=False,
        )
        try:
            check_batch(graph, larger, fixed=False)
            meshes = usable_meshes(preferred_meshes(larger), graph, coarse, asked.pins)
        except InputError:  # the batch or the pins do not divide there
            continue
        for mesh in meshes:
            if time.monotonic() > deadline:
                return []
            if _fits(graph, coarse, larger, mesh, asked):
                return [f"{larger.devices} devices instead of {machine.devices} ({larger.name}, mesh {mesh})"]
    return []


def _fits(graph: Graph, coarse: Coarse, machine: Machine, mesh: LogicalMesh, request: Request) -> bool:
    try:
        return search(graph, coarse, machine, (mesh,), request, lambda stage, part: None).best.fits
    except InputError:  # no scheme that was asked for applies on this mesh
        return False


def _larger(machine: Machine, times: float) -> Iterator[Machine]:
    """Machines of the same chip with `times` as many devices or more, the smallest first. None for the
    host's own cores, which share one memory however many devices they are called."""
    chip, least = machine.chip, machine.devices * times
    if chip.kind == "gpu":
        per_node = int(chip.number("gpus_per_node"))
        doublings = (machine.devices * 2**n for n in range(1, 20))
        texts = [f"{max(1, n // per_node)}x{min(n, per_node)}" for n in doublings]
    elif chip.kind == "tpu":
        shapes = ["x".join(map(str, shape)) for shape in sorted(chip.slices, key=math.prod)]
        texts = [*shapes, *(f"{shapes[-1]}*{2**n}" for n in range(1, 6))]
    else:
        texts = []
    for text in texts:
        try:
            larger = load_machine(f"{chip.name}:{text}")
        except InputError:  # no public figure for the network between nodes
            continue
        if larger.devices >= least:
            yield larger
