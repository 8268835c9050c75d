"""Problems into files, in the format that `planner.cost.contest` describes and reads."""

import dataclasses
import gzip
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.cost.checked import FORBIDDEN_IN_FILE
from planner.cost.problem import Floats, Problem, Usage
from planner.errors import InputError

PICOSECONDS = 1e12  # per second


def save(problem: Problem, path: str | os.PathLike[str], name: str = "meshwright") -> None:
    """Writes a problem; `planner.cost.contest.load` reads it back. Compressed when the name ends in .gz.
    Raises InputError when it cannot be written."""
    raw = json.dumps({"problem": {"name": name, **content_of(problem)}}).encode()
    target = pathlib.Path(path)
    try:
        target.write_bytes(gzip.compress(raw, mtime=0) if target.suffix == ".gz" else raw)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{str(path)!r} cannot be written ({reason}). Name a file in a folder that exists."
        ) from error


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


def in_whole_numbers(problem: Problem, costs_per_unit: float = PICOSECONDS) -> Problem:
    """The problem as the contest's readers take it, who know no fractions: costs in picoseconds, to the
    nearest, bytes rounded up and the limit down, so that what keeps the limit there keeps it here. A cost of
    10^6 s or more is forbidden in a file."""
    made: dict[tuple[int, bool], Floats] = {}

    def costs(table: Floats) -> Floats:
        return made.setdefault((id(table), False), np.round(table * costs_per_unit))

    def held(usage: Usage) -> Usage:
        return dataclasses.replace(
            usage, bytes=made.setdefault((id(usage.bytes), True), np.ceil(usage.bytes))
        )

    return dataclasses.replace(
        problem,
        node_costs=tuple(map(costs, problem.node_costs)),
        edge_costs=tuple(map(costs, problem.edge_costs)),
        node_usages=tuple(map(held, problem.node_usages)),
        edge_usages=tuple(map(held, problem.edge_usages)),
        usage_limit=float(np.floor(problem.usage_limit)),
    )


def _listed(usages: Sequence[Usage]) -> list[list[Any]]:
    return [[usage.of, usage.first, usage.last, _row(usage.bytes)] for usage in usages]


def _row(table: Floats) -> list[float | int]:
    return [FORBIDDEN_IN_FILE if x == np.inf else _number(x) for x in table.ravel().tolist()]


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value
