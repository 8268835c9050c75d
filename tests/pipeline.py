"""The stages of planning one by one, for the tests of the rooms in between."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from meshes.machine import load_machine
from meshes.mesh import mesh_of
from planner.cost.tables import Pins, Tables, build
from planner.cost.traffic import Network
from planner.graph.coarsen import Coarse, Node, coarsen
from planner.graph.graph import Graph
from planner.jax_compat import trace_step
from planner.search import Found, Request, search
from planner.trace import build_graph


@dataclasses.dataclass(frozen=True)
class Stages:
    """What each stage makes of one step on one mesh."""

    graph: Graph
    coarse: Coarse
    network: Network
    tables: Tables


def graph_of(step: Callable[..., Any], *args: Any) -> Graph:
    return build_graph(trace_step(step, args))


def network_of(machine: str, **sizes: int) -> Network:
    loaded = load_machine(machine)
    return Network(loaded, mesh_of(loaded, sizes))


def stages_of(
    step: Callable[..., Any],
    *args: Any,
    network: Network,
    limit: float = math.inf,
    pins: Pins | None = None,
) -> Stages:
    graph = graph_of(step, *args)
    coarse = coarsen(graph)
    return Stages(graph, coarse, network, build(graph, coarse, network, limit, pins))


def found_by(stages: Stages, **request: Any) -> Found:
    """The search on the one mesh of these stages."""
    network = stages.network
    asked = Request(**({"limit": math.inf, "every_scheme": True} | request))
    return search(
        stages.graph, stages.coarse, network.machine, (network.mesh,), asked, lambda stage, part: None
    )


def primitives(graph: Graph, node: Node) -> list[str]:
    """The primitives of the ops of a node, in program order."""
    of = {op.id: op.primitive for op in graph.ops}
    return [of[op] for op in node.ops]


def node_with(graph: Graph, coarse: Coarse, primitive: str) -> Node:
    """The only node that holds an op of this primitive."""
    (node,) = [node for node in coarse.nodes if primitive in primitives(graph, node)]
    return node
