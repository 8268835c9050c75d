"""The problem as an integer linear programme, solved by HiGHS: slow, but it knows the memory limit.

    variables    z_v[a] in {0, 1}, one per strategy;     y_e[a, b] >= 0, one per pair of an edge
    minimise     sum_v node_costs[v] . z_v  +  sum_e edge_costs[e] . y_e
    subject to   sum_a z_v[a] = 1
                 sum_b y_e[a, b] = z_u[a],   sum_a y_e[a, b] = z_w[b]
                 at every maximal time:   usages of z and y   <=   usage_limit

A time is maximal if no other time sees all that is alive then; only those need a row, and only where the
limit could be exceeded. With z integral, y is; forbidden entries are fixed to zero. This is the programme of
Alpa (OSDI 2022, section 5.2) with memory rows.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from planner.cost.problem import Choice, Problem, Usage, cost_of, peak_of

EXACT = 1e-9  # relative: HiGHS works in floating point


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Sparse rows: (row, column, coefficient), and the bounds of each row."""

    entries: list[tuple[int, int, float]]
    low: list[float]
    high: list[float]

    def add(self, entries: Iterable[tuple[int, float]], low: float, high: float) -> None:
        """One more row."""
        row = len(self.low)
        self.entries.extend((row, column, factor) for column, factor in entries)
        self.low.append(low)
        self.high.append(high)


def solve(problem: Problem, *, seconds: float = 60.0, seed: int = 0) -> Choice:
    """The optimum with the memory limit, or the best that HiGHS found, with its bound. When nothing was
    found, the strategies that are cheapest by themselves. `seed` is not used: HiGHS is deterministic."""
    del seed
    nodes = np.cumsum([0, *(len(costs) for costs in problem.node_costs)])
    edges = nodes[-1] + np.cumsum([0, *(table.size for table in problem.edge_costs)])
    flat = [np.ravel(table) for table in (*problem.node_costs, *problem.edge_costs)]
    costs = np.concatenate(flat) if flat else np.zeros(0)
    allowed = np.isfinite(costs)
    scale = float(np.abs(costs[allowed]).max(initial=0.0)) or 1.0
    rows = _structure(problem, nodes, edges)
    _memory(problem, nodes, edges, rows)
    row, column, factor = (np.array(part) for part in zip(*rows.entries, strict=True))
    matrix = csr_array((factor.astype(float), (row, column)), shape=(len(rows.low), len(costs)))
    integral = np.zeros(len(costs))
    integral[: nodes[-1]] = 1
    solved = milp(
        np.where(allowed, costs, 0.0) / scale,
        constraints=LinearConstraint(matrix, rows.low, rows.high),  # pyright: ignore[reportArgumentType]
        integrality=integral,
        bounds=Bounds(0.0, allowed.astype(float)),  # pyright: ignore[reportArgumentType]
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    bound = -np.inf if solved.mip_dual_bound is None else float(solved.mip_dual_bound) * scale
    if solved.x is None:
        return _without(problem, bound, str(solved.message), infeasible=solved.status == 2)
    choice = tuple(int(solved.x[a:b].argmax()) for a, b in itertools.pairwise(nodes))
    cost, peak = cost_of(problem, choice), peak_of(problem, choice)
    if solved.status == 0 or cost - bound <= EXACT * abs(cost):
        return Choice(choice, cost, cost, peak, "exact")
    return Choice(
        choice, cost, min(bound, cost), peak, f"gap {100 * (cost - bound) / cost:.2g}% after {seconds:g} s"
    )


def _without(problem: Problem, bound: float, message: str, *, infeasible: bool) -> Choice:
    choice = tuple(int(costs.argmin()) for costs in problem.node_costs)
    cost, peak = cost_of(problem, choice), peak_of(problem, choice)
    stopped = "no choice fits: HiGHS proved that there is none" if infeasible else f"nothing found: {message}"
    return Choice(choice, cost, min(bound, cost), peak, stopped)


def _structure(problem: Problem, nodes: NDArray[np.intp], edges: NDArray[np.intp]) -> _Rows:
    rows = _Rows([], [], [])
    for v, costs in enumerate(problem.node_costs):
        rows.add([(int(nodes[v]) + a, 1.0) for a in range(len(costs))], 1.0, 1.0)
    for e, ((u, w), table) in enumerate(zip(problem.edges, problem.edge_costs, strict=True)):
        column = int(edges[e]) + np.arange(table.size).reshape(table.shape)
        for a in range(table.shape[0]):
            rows.add([(int(nodes[u]) + a, -1.0), *((int(c), 1.0) for c in column[a])], 0.0, 0.0)
        for b in range(table.shape[1]):
            rows.add([(int(nodes[w]) + b, -1.0), *((int(c), 1.0) for c in column[:, b])], 0.0, 0.0)
    return rows


def _memory(problem: Problem, nodes: NDArray[np.intp], edges: NDArray[np.intp], rows: _Rows) -> None:
    if not np.isfinite(problem.usage_limit):
        return
    held = [(usage, int(nodes[usage.of])) for usage in problem.node_usages]
    held += [(usage, int(edges[usage.of])) for usage in problem.edge_usages]
    unit = max((float(usage.bytes.max(initial=0.0)) for usage, _ in held), default=1.0) or 1.0
    most = np.zeros(problem.horizon + 1)
    for usage, _ in held:
        most[usage.first : usage.last] += float(usage.bytes.max(initial=0.0))
    for at in maximal_times([usage for usage, _ in held]):
        if most[at] <= problem.usage_limit:
            continue
        total: dict[int, float] = {}
        for usage, begin in held:
            if usage.first <= at < usage.last:
                for offset, size in enumerate(np.ravel(usage.bytes).tolist()):
                    total[begin + offset] = total.get(begin + offset, 0.0) + size / unit
        rows.add(total.items(), -np.inf, problem.usage_limit / unit)


def maximal_times(usages: Sequence[Usage]) -> list[int]:
    """Times such that whatever is alive at any time is alive at one of them: the last begin before an end."""
    alive = [usage for usage in usages if usage.last > usage.first]
    events = sorted({(usage.last, 0) for usage in alive} | {(usage.first, 1) for usage in alive})
    return [at for (at, begins), after in itertools.pairwise(events) if begins and not after[1]]
