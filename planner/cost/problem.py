"""Problem: all that a solver sees. Arrays of seconds and bytes; no ops, no meshes.

    minimise    sum_v node_costs[v][c_v]  +  sum_e edge_costs[e][c_u, c_w]
    subject to  at every time t:
                   sum of node_usages whose interval holds t
                 + sum of edge_usages whose interval holds t   <=  usage_limit

A choice c gives each node one of its strategies. Identical tables are the *same* numpy object: solvers may
intern by `id`. With no edge usages, and one usage per node this is the problem of the ASPLOS/EuroSys 2025
contest on intra-operator parallelism. A forbidden strategy or pair costs `FORBIDDEN`.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FORBIDDEN = np.inf


@dataclasses.dataclass(frozen=True)
class Usage:
    """Bytes held during the half-open interval [first, last). `of` is a node or an edge; bytes has one entry
    per strategy of that node, or is a matrix with one entry per pair of the edge's strategies."""

    of: int
    first: int
    last: int
    bytes: Floats


@dataclasses.dataclass(frozen=True)
class Problem:
    """node_costs[v]: seconds, shape (K_v,). edges[e] = (u, w), edge_costs[e]: seconds, shape (K_u, K_w);
    parallel edges add up. usage_limit: bytes, inf for none. horizon: number of times."""

    node_costs: tuple[Floats, ...]
    edges: tuple[tuple[int, int], ...]
    edge_costs: tuple[Floats, ...]
    node_usages: tuple[Usage, ...] = ()
    edge_usages: tuple[Usage, ...] = ()
    usage_limit: float = np.inf
    horizon: int = 1


@dataclasses.dataclass(frozen=True)
class Choice:
    """A solver's answer: one strategy index per node; cost in the problem's unit; lower_bound: proven, of the
    whole constrained problem; peak: the largest usage at any time; stopped: why the solver stopped, in words
    ('exact', 'gap 0.3% after 5 s', 'no choice fits: ...')."""

    choice: tuple[int, ...]
    cost: float
    lower_bound: float
    peak: float
    stopped: str


def cost_of(problem: Problem, choice: tuple[int, ...] | list[int]) -> float:
    """Seconds of a choice; inf if it uses a forbidden strategy or pair."""
    nodes = sum(float(costs[c]) for costs, c in zip(problem.node_costs, choice, strict=True))
    edges = sum(
        float(table[choice[u], choice[w]])
        for (u, w), table in zip(problem.edges, problem.edge_costs, strict=True)
    )
    return nodes + edges


def usage_over_time(problem: Problem, choice: tuple[int, ...] | list[int]) -> Floats:
    """Bytes in use at each time, shape (horizon,)."""
    steps = np.zeros(problem.horizon + 1)
    for usage in problem.node_usages:
        held = float(usage.bytes[choice[usage.of]])
        steps[usage.first] += held
        steps[usage.last] -= held
    for usage in problem.edge_usages:
        u, w = problem.edges[usage.of]
        held = float(usage.bytes[choice[u], choice[w]])
        steps[usage.first] += held
        steps[usage.last] -= held
    return np.cumsum(steps[:-1])


def peak_of(problem: Problem, choice: tuple[int, ...] | list[int]) -> float:
    """The largest number of bytes in use at any time."""
    return float(usage_over_time(problem, choice).max(initial=0.0))


def least_peak(problem: Problem) -> float:
    """Bytes that no choice can do without: at its worst time, the least that every node and edge can use."""
    steps = np.zeros(problem.horizon + 1)
    for usage in (*problem.node_usages, *problem.edge_usages):
        least = float(usage.bytes.min())
        steps[usage.first] += least
        steps[usage.last] -= least
    return float(np.cumsum(steps[:-1]).max(initial=0.0))
