"""Problems as files: the JSON of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism.

    problem.nodes.intervals[v] = [first, end)      problem.nodes.costs[v][s]     problem.nodes.usages[v][s]
    problem.edges.nodes[e] = [u, v]                problem.edges.costs[e]: row-major K_u x K_v
    problem.usage_limit

A cost of 10^18 or more marks a forbidden strategy or pair. The contest has one usage per node and none per
edge; a problem that has more keeps them in two keys of our own, `nodes.more_usages` and `edges.usages`, lists
of [node or edge, first, end, bytes], which the contest's readers ignore. Costs are numbers of any unit; the
contest's own are whole, and their sums may pass 2^63, so a file's costs are also kept as they are written.
`planner.cost.saving` writes the format.
"""

import dataclasses
import gzip
import json
import math
import pathlib
import zlib
from collections.abc import Sequence
from typing import Any

from planner.cost.checked import (
    Numbers,
    Tables,
    Wrong,
    count_of,
    ends_of,
    interval_of,
    limit_of,
    part_of,
    usages_of,
)
from planner.cost.problem import Problem, Usage
from planner.errors import InputError

_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class Contest:
    """A problem, with the node and edge costs as they stand in its file: the problem's are floats."""

    problem: Problem
    node_costs: tuple[Numbers, ...]
    edge_costs: tuple[Numbers, ...]


def exact_cost(contest: Contest, choice: Sequence[int]) -> int | float:
    """The cost of a choice in the numbers of the file, 10^18 for each forbidden strategy or pair that it has.
    An int, exact, if all of them are whole; otherwise a float."""
    terms = [costs[c : c + 1].tolist()[0] for costs, c in zip(contest.node_costs, choice, strict=True)]
    terms += [
        costs[choice[u] : choice[u] + 1, choice[w]].tolist()[0]
        for (u, w), costs in zip(contest.problem.edges, contest.edge_costs, strict=True)
    ]
    whole = sum(term for term in terms if isinstance(term, int))
    broken = [term for term in terms if isinstance(term, float)]
    return whole + math.fsum(broken) if broken else whole


def load(path: str | pathlib.Path) -> Problem:
    """Reads a problem from a JSON file, compressed by gzip or not. Raises InputError when it is not one."""
    return read(path).problem


def read(path: str | pathlib.Path) -> Contest:
    """Like `load`, with the costs of the file."""
    path = pathlib.Path(path)
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if raw.startswith(_GZIP) else raw)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} is a broken gzip file ({error}); copy it again.") from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}); give a readable file."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON ({error}); give a problem in the contest's format, .json or .json.gz."
        ) from error
    try:
        return contest_of(part_of(content, "problem", dict))
    except (Wrong, OverflowError) as error:
        raise InputError(f"{path} is not a problem of the contest's format: {error}.") from error


def contest_of(content: dict[str, Any]) -> Contest:
    """The problem in a decoded JSON object. Raises Wrong, which says what is not as it should be."""
    nodes, edges = part_of(content, "nodes", dict), part_of(content, "edges", dict)
    tables = Tables()
    rows = part_of(nodes, "costs", list, "nodes.")
    costs = [tables.costs(row, (count_of(row, v),), ("nodes.costs", v)) for v, row in enumerate(rows)]
    sizes = [len(floats) for _, floats in costs]
    ends = tuple(
        ends_of(pair, e, len(costs)) for e, pair in enumerate(part_of(edges, "nodes", list, "edges."))
    )
    joined = [
        tables.costs(row, (sizes[u], sizes[w]), ("edges.costs", e))
        for e, ((u, w), row) in enumerate(
            zip(ends, part_of(edges, "costs", list, "edges.", len(ends)), strict=True)
        )
    ]
    intervals = part_of(nodes, "intervals", list, "nodes.", len(costs))
    held = []
    for v, row in enumerate(part_of(nodes, "usages", list, "nodes.", len(costs))):
        first, last = interval_of(intervals[v], ("nodes.intervals", v))
        table = tables.usages(row, (sizes[v],), ("nodes.usages", v))
        if last > first:
            held.append(Usage(v, first, last, table))
    held += usages_of(nodes, "more_usages", [(k,) for k in sizes], tables, "nodes.")
    shapes = [(sizes[u], sizes[w]) for u, w in ends]
    on_edges = usages_of(edges, "usages", shapes, tables, "edges.")
    problem = Problem(
        tuple(floats for _, floats in costs),
        ends,
        tuple(floats for _, floats in joined),
        tuple(held),
        tuple(on_edges),
        limit_of(content.get("usage_limit")),
        max((usage.last for usage in (*held, *on_edges)), default=1),
    )
    return Contest(problem, tuple(exact for exact, _ in costs), tuple(exact for exact, _ in joined))
