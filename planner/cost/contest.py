"""Problems as files: the JSON of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism.

    problem.nodes.intervals[v] = [first, end)      problem.nodes.costs[v][s]     problem.nodes.usages[v][s]
    problem.edges.nodes[e] = [u, v]                problem.edges.costs[e]: row-major K_u x K_v
    problem.usage_limit

A cost of 10^18 or more marks a forbidden strategy or pair. The contest has one usage per node and none per
edge; a problem that has more keeps them in two keys of our own, `nodes.more_usages` and `edges.usages`, lists
of [node or edge, first, end, bytes], which the contest's readers ignore. Costs are numbers of any unit.
"""

import gzip
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.cost.problem import Floats, Problem, Usage
from planner.errors import InputError

FORBIDDEN_IN_FILE = 10**18


def load(path: str | pathlib.Path) -> Problem:
    """Reads a problem from a .json or .json.gz file. Raises InputError when it is not one."""
    path = pathlib.Path(path)
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        return problem_of(content["problem"])
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}); give a readable file."
        ) from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{path} is not a problem of the contest's format ({error!r}); "
            "give a JSON file with problem.nodes and problem.edges."
        ) from error


def problem_of(content: dict[str, Any]) -> Problem:
    """The problem in a decoded JSON object. Raises KeyError, ValueError or TypeError when parts are wrong."""
    nodes, edges = content["nodes"], content["edges"]
    shared: dict[bytes, Floats] = {}
    costs = tuple(_table(row, (len(row),), shared) for row in nodes["costs"])
    ends = tuple((int(u), int(w)) for u, w in edges["nodes"])
    tables = tuple(
        _table(row, (len(costs[u]), len(costs[w])), shared)
        for (u, w), row in zip(ends, edges["costs"], strict=True)
    )
    held = [
        Usage(v, int(first), int(last), _table(row, costs[v].shape, shared))
        for v, ((first, last), row) in enumerate(zip(nodes["intervals"], nodes["usages"], strict=True))
        if last > first
    ]
    held += [
        Usage(v, a, b, _table(row, costs[v].shape, shared)) for v, a, b, row in nodes.get("more_usages", ())
    ]
    on_edges = tuple(
        Usage(e, a, b, _table(row, tables[e].shape, shared)) for e, a, b, row in edges.get("usages", ())
    )
    horizon = max((usage.last for usage in (*held, *on_edges)), default=1)
    limit = content.get("usage_limit")
    return Problem(
        costs, ends, tables, tuple(held), on_edges, np.inf if limit is None else float(limit), horizon
    )


def save(problem: Problem, path: str | pathlib.Path, name: str = "meshwright") -> None:
    """Writes a problem; `load` reads it back. Written compressed when the name ends in .gz."""
    path = pathlib.Path(path)
    raw = json.dumps({"problem": {"name": name, **content_of(problem)}}).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def content_of(problem: Problem) -> dict[str, Any]:
    """The JSON object of a problem, without its name."""
    first_of: dict[int, Usage] = {}
    more: list[Usage] = []
    for usage in problem.node_usages:
        if usage.of in first_of or usage.last <= usage.first:
            more.append(usage)
        else:
            first_of[usage.of] = usage
    count = len(problem.node_costs)
    nodes: dict[str, Any] = {
        "intervals": [
            [first_of[v].first, first_of[v].last] if v in first_of else [0, 0] for v in range(count)
        ],
        "costs": [_row(costs) for costs in problem.node_costs],
        "usages": [
            _row(first_of[v].bytes) if v in first_of else [0] * len(problem.node_costs[v])
            for v in range(count)
        ],
    }
    edges: dict[str, Any] = {
        "nodes": [list(ends) for ends in problem.edges],
        "costs": [_row(table) for table in problem.edge_costs],
    }
    if more:
        nodes["more_usages"] = _listed(more)
    if problem.edge_usages:
        edges["usages"] = _listed(problem.edge_usages)
    content: dict[str, Any] = {"nodes": nodes, "edges": edges}
    if np.isfinite(problem.usage_limit):
        content["usage_limit"] = _number(problem.usage_limit)
    return content


def _table(row: Sequence[float], shape: tuple[int, ...], shared: dict[bytes, Floats]) -> Floats:
    table = np.asarray(row, dtype=np.float64).reshape(shape)
    table = np.where(table >= FORBIDDEN_IN_FILE, np.inf, table)
    return shared.setdefault(repr(shape).encode() + table.tobytes(), table)


def _listed(usages: Sequence[Usage]) -> list[list[Any]]:
    return [[usage.of, usage.first, usage.last, _row(usage.bytes)] for usage in usages]


def _row(table: Floats) -> list[float | int]:
    return [FORBIDDEN_IN_FILE if x == np.inf else _number(x) for x in table.ravel().tolist()]


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value
