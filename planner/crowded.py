"""What is in the way when nothing fits: the fewest values that cannot be held together, and their pins."""

import dataclasses
from collections.abc import Mapping

from planner.cost.tables import Pins, Tables, build
from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph
from planner.plans import LeafPlan
from planner.report.groups import group_leaves
from planner.report.units import memory
from planner.sharding.spec import Spec, show
from planner.solvers.conflict import Conflict, conflict

_NAMED = 6  # groups of values; what is left out is counted
_ROUNDS = 4  # of leaving out pins


@dataclasses.dataclass(frozen=True)
class Crowd:
    """A smallest conflict on one mesh. tables, pins: what it was found in. gain: for each node in it that a
    pin makes larger, the bytes that it could do without."""

    tables: Tables
    pins: Pins
    found: Conflict
    gain: Mapping[int, float]


def crowd_of(graph: Graph, coarse: Coarse, tables: Tables, pins: Pins) -> Crowd | None:
    """What does not fit on the mesh of `tables`, which were built with `pins`; None if that is not proven."""
    found = conflict(tables.problem)
    if found is None:
        return None
    pinned = [(v, size) for v, size in found.nodes if v in pins]
    gain: dict[int, float] = {}
    if pinned:
        free = build(graph, coarse, tables.network, tables.problem.usage_limit).problem
        least = {usage.of: float(usage.bytes.min()) for usage in free.node_usages}
        gain = {v: size - least[v] for v, size in pinned if size > least[v]}
    return Crowd(tables, pins, found, gain)


def crowd_words(graph: Graph, coarse: Coarse, crowd: Crowd) -> str:
    """One sentence: which values, how they are pinned, and how many bytes they need."""
    groups = sorted(group_leaves(_leaves(graph, coarse, crowd)), key=lambda group: -group.bytes)
    parts = []
    for group in groups[:_NAMED]:
        count = f" x{group.count}" if group.count > 1 else ""
        pinned = f" pinned to {show(group.leaf.spec)}" if group.leaf.spec else ""
        parts.append(f"{group.pattern}{count}{pinned} ({memory(group.bytes)})")
    left = sum(group.count for group in groups[_NAMED:])
    more = f" and {left} more" if left else ""
    return (
        f"On the mesh {crowd.tables.network.mesh}, these take {memory(crowd.found.bytes)} at the same time, "
        f"however they are sharded: {', '.join(parts)}{more}."
    )


def _leaves(graph: Graph, coarse: Coarse, crowd: Crowd) -> list[LeafPlan]:
    """The values of a conflict, each with the bytes that it needs at least, and with the spec that it is
    pinned to if that makes it larger."""
    rows: list[tuple[str, int, Spec, float]] = []
    for v, size in crowd.found.nodes:
        ports = coarse.nodes[v].outputs
        alive = [port for port in ports if port.first <= crowd.found.at <= port.last]
        value = (alive or ports)[0].value
        spec = crowd.pins[v][-1].pin.required(len(graph.values[value].shape)) if v in crowd.gain else ()
        rows.append(("", value, spec, size))
    for e, size in crowd.found.edges:
        link = coarse.links[e]
        rows.append(("a copy of ", coarse.nodes[link.user].inputs[link.into].value, (), size))
    values = graph.values
    return [
        LeafPlan(what + values[v].name, values[v].shape, values[v].dtype, spec, size)
        for what, v, spec, size in rows
    ]


def pins_in_the_way(graph: Graph, coarse: Coarse, crowd: Crowd) -> tuple[int, ...]:
    """The nodes whose pins have to go before it is no longer proven that nothing fits, first those that gain
    most; () if it is not the pins."""
    left = dict(crowd.pins)
    gone: list[int] = []
    now: Crowd | None = crowd
    for _ in range(_ROUNDS):
        if now is None:
            return tuple(gone)
        gain, need = now.gain, now.found.bytes
        for v in sorted(gain, key=lambda v: (-gain[v], v)):
            if need > now.found.limit:
                need -= gain[v]
                gone.append(v)
                del left[v]
        if need > now.found.limit:
            return ()
        limit = crowd.tables.problem.usage_limit
        now = crowd_of(graph, coarse, build(graph, coarse, crowd.tables.network, limit, left), left)
    return ()
