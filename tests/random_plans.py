"""Plans drawn at random from the whole space of a mesh: none that a search would choose, all valid."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meshes.machine import load_machine
from meshes.mesh import mesh_of
from planner import api
from planner.candidates import Candidate, scheme_rows
from planner.cost.problem import Choice, cost_of, peak_of
from planner.cost.tables import build
from planner.cost.traffic import Network
from planner.graph.coarsen import coarsen
from planner.jax_compat import trace_step
from planner.plans import Plan
from planner.search import Found
from planner.sharding import named
from planner.trace import build_graph


def random_plan(
    step: Callable[..., Any], args: tuple[Any, ...], machine: str, sizes: Mapping[str, int], seed: int
) -> Plan:
    """One strategy for each node, all equally likely, whatever the others do."""
    loaded = load_machine(machine)
    mesh = mesh_of(loaded, sizes)
    traced = trace_step(step, args)
    graph = build_graph(traced)
    coarse = coarsen(graph)
    tables = build(graph, coarse, Network(loaded, mesh), math.inf)
    rng = np.random.default_rng(seed)
    drawn = tuple(int(rng.integers(len(table.strategies))) for table in tables.nodes)
    cost, peak = cost_of(tables.problem, drawn), peak_of(tables.problem, drawn)
    best = Candidate("", mesh, tables, Choice(drawn, cost, peak, 0.0, "drawn at random"))
    rows = scheme_rows(graph, coarse, [best], best, [mesh], [], (), ())
    sorts = named.sorts(coarse.nodes, {})
    return api._write(traced, graph, coarse, loaded, Found(best, rows, 0.0, {}, sorts), {})
