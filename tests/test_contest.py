"""Problems as files: what is written is read back, and what is not a problem is refused in one sentence."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from planner.cost.contest import exact_cost, load, read
from planner.cost.problem import FORBIDDEN, Problem, Usage, cost_of, usage_over_time
from planner.cost.saving import in_whole_numbers, save
from planner.errors import InputError

HOME = pathlib.Path(__file__).resolve().parents[1].parent / "shared" / "iopddl"
TINY = Problem(
    (np.array([1.0, 2.5]), np.array([0.0, FORBIDDEN, 3.0])),
    ((0, 1), (1, 0)),
    (np.array([[0.0, 1.0, FORBIDDEN], [4.0, 0.5, 2.0]]), np.arange(6.0).reshape(3, 2)),
    (Usage(0, 0, 2, np.array([5.0, 6.0])), Usage(1, 1, 3, np.array([7.0, 8.0, 9.0]))),
    (),
    13.0,
    3,
)


def test_the_contest_format_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(
        json.dumps(
            {
                "problem": {
                    "nodes": {
                        "intervals": [[0, 2], [0, 0]],
                        "costs": [[1, 2], [3, 10**18]],
                        "usages": [[10, 4], [9, 9]],
                    },
                    "edges": {"nodes": [[0, 1]], "costs": [[0, 5, 10**18, 1]]},
                    "usage_limit": 9,
                }
            }
        )
    )
    problem = load(path)
    assert problem.node_costs[1].tolist() == [3.0, np.inf]
    assert problem.edge_costs[0].tolist() == [[0.0, 5.0], [np.inf, 1.0]]
    assert [(u.of, u.first, u.last) for u in problem.node_usages] == [(0, 0, 2)]
    assert problem.usage_limit == 9.0
    assert usage_over_time(problem, (0, 0)).tolist() == [10.0, 10.0]


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
@pytest.mark.parametrize(
    "problem",
    [
        TINY,
        dataclasses.replace(TINY, usage_limit=np.inf),
        dataclasses.replace(TINY, edge_usages=(Usage(1, 0, 3, np.arange(6.0).reshape(3, 2)),)),
        dataclasses.replace(TINY, node_usages=(*TINY.node_usages, Usage(0, 2, 3, np.array([1.5, 0.0])))),
    ],
    ids=["contest", "no limit", "edge usages", "two usages of a node"],
)
def test_what_is_saved_is_loaded(problem: Problem, name: str, tmp_path: pathlib.Path) -> None:
    save(problem, tmp_path / name)
    again = load(tmp_path / name)
    assert again.usage_limit == problem.usage_limit
    for choice in ((0, 0), (0, 2), (1, 1), (1, 2)):
        assert cost_of(again, choice) == cost_of(problem, choice)
        assert np.array_equal(usage_over_time(again, choice), usage_over_time(problem, choice))


def test_equal_tables_are_one_object_after_loading(tmp_path: pathlib.Path) -> None:
    twice = dataclasses.replace(
        TINY, node_costs=(TINY.node_costs[0], TINY.node_costs[0]), edges=(), edge_costs=()
    )
    save(dataclasses.replace(twice, node_usages=()), tmp_path / "p.json")
    again = load(tmp_path / "p.json")
    assert again.node_costs[0] is again.node_costs[1]


def content(**parts: object) -> dict:
    """A small file's content. parts: dotted names, with _ for the dot, and what stands there instead."""
    nodes = {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3, 4, 5]], "usages": [[10, 4], [9, 9, 9]]}
    edges = {"nodes": [[0, 1]], "costs": [[0, 5, 10**18, 1, 2, 3]]}
    problem: dict = {"nodes": nodes, "edges": edges, "usage_limit": 20}
    for name, value in parts.items():
        where, _, key = name.rpartition("__")
        (problem[where] if where else problem)[key] = value
    return {"problem": problem}


def written(path: pathlib.Path, **parts: object) -> pathlib.Path:
    path.write_text(json.dumps(content(**parts)))
    return path


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_a_file_may_be_compressed_whatever_it_is_called(name: str, tmp_path: pathlib.Path) -> None:
    save(TINY, tmp_path / "saved.json.gz")
    (tmp_path / name).write_bytes((tmp_path / "saved.json.gz").read_bytes())
    assert cost_of(load(tmp_path / name), (0, 0)) == cost_of(TINY, (0, 0))


def test_costs_are_exact_beyond_what_a_float_or_64_bits_hold(tmp_path: pathlib.Path) -> None:
    large = 10**18 - 1
    path = written(
        tmp_path / "p.json",
        nodes__costs=[[large, 2**53 + 1], [large, large, 2**80 + 1]],
        edges__costs=[[large] * 5 + [10**19]],
    )
    found = read(path)
    assert exact_cost(found, (0, 0)) == 3 * large > 2**61
    assert exact_cost(found, (1, 1)) == 2**53 + 1 + 2 * large
    assert exact_cost(found, (1, 2)) == 2**53 + 1 + 2**80 + 1 + 10**19 > 2**63
    assert all(isinstance(exact_cost(found, (0, c)), int) for c in range(3))
    assert found.problem.node_costs[1].tolist() == [1e18, 1e18, np.inf]
    broken = read(written(path, nodes__costs=[[0.5, 2**60 + 1], [1, 1, 1]]))
    assert exact_cost(broken, (0, 0)) == 1.5
    assert exact_cost(broken, (1, 1)) == 2**60 + 1 + 1 + 2


def test_whole_numbers_keep_the_limit(tmp_path: pathlib.Path) -> None:
    seconds = dataclasses.replace(
        TINY,
        node_costs=(np.array([1.23456e-6, 2.5e-3]), TINY.node_costs[1]),
        node_usages=(Usage(0, 0, 2, np.array([5.25, 6.0])), *TINY.node_usages[1:]),
        usage_limit=13.9,
    )
    whole = in_whole_numbers(seconds)
    assert whole.node_costs[0].tolist() == [1234560.0, 2.5e9]
    assert whole.node_costs[1].tolist() == [0.0, FORBIDDEN, 3e12]
    assert whole.node_usages[0].bytes.tolist() == [6.0, 6.0]
    assert whole.usage_limit == 13.0
    save(whole, tmp_path / "p.json")
    numbers = json.loads((tmp_path / "p.json").read_text())["problem"]
    assert all(type(x) is int for part in ("nodes", "edges") for row in numbers[part]["costs"] for x in row)
    again = in_whole_numbers(
        dataclasses.replace(
            seconds, node_costs=(seconds.node_costs[0],) * 2, edges=(), edge_costs=(), node_usages=()
        )
    )
    assert again.node_costs[0] is again.node_costs[1]


WRONG = {
    "{}": "it has no problem; give an object of that name",
    "[1]": "it has no problem; give an object of that name",
    '{"problem": {"nodes": {}}}': "it has no edges; give an object of that name",
    '{"problem": {"nodes": {}, "edges": {}}}': "it has no nodes.costs; give a list of that name",
}
PARTS = [
    (
        {"nodes__costs": [[1, 2], []]},
        "nodes.costs[1] has no numbers; give one cost per strategy, at least one",
    ),
    ({"nodes__costs": [[1, 2]]}, "edges.nodes[0] is [0, 1]; give two nodes, each from 0 to 0"),
    ({"nodes__usages": [[10, 4]]}, "nodes.usages has 1 entries for 2 nodes; give one per node"),
    (
        {"nodes__usages": [[10], [9, 9, 9]]},
        "nodes.usages[0] is 1 numbers where 2 are wanted; give one per strategy",
    ),
    (
        {"nodes__usages": [[10, "x"], [9, 9, 9]]},
        "nodes.usages[0] holds something else than numbers; give one number per strategy",
    ),
    (
        {"nodes__usages": [[10, [4]], [9, 9, 9]]},
        "nodes.usages[0] holds something else than numbers; give one number per strategy",
    ),
    (
        {"nodes__costs": [[1, True], [3, 4, None]]},
        "nodes.costs[1] holds something else than numbers; give one number per strategy",
    ),
    (
        {"nodes__costs": [[1, float("nan")], [3, 4, 5]]},
        "nodes.costs[0] holds NaN or -Infinity; give finite numbers",
    ),
    (
        {"nodes__intervals": [[0, 2], [1]]},
        "nodes.intervals[1] is [1]; give two times, [first, end), from 0 to 100000000",
    ),
    (
        {"nodes__intervals": [[-1, 2], [1, 3]]},
        "nodes.intervals[0] is [-1, 2]; give two times, [first, end), from 0 to 100000000",
    ),
    ({"edges__nodes": [[0, 2]]}, "edges.nodes[0] is [0, 2]; give two nodes, each from 0 to 1"),
    ({"edges__nodes": [[0, 1], [1, 0]]}, "edges.costs has 1 entries for 2 edges; give one per edge"),
    (
        {"edges__costs": [[1, 2, 3]]},
        "edges.costs[0] is 3 numbers where 2 x 3 are wanted; give one per strategy",
    ),
    ({"usage_limit": "much"}, "usage_limit is 'much'; give a number of bytes"),
    (
        {"nodes__more_usages": [[7, 0, 1, [1, 2]]]},
        "nodes.more_usages[0] is [7, 0, 1, [1, 2]]; give [index, first, end, bytes]",
    ),
    (
        {"edges__usages": [[0, 0, 1, [1]]]},
        "edges.usages[0] is 1 numbers where 2 x 3 are wanted; give one per strategy",
    ),
]


@pytest.mark.parametrize(
    ("text", "said"), [*WRONG.items(), *((json.dumps(content(**part)), said) for part, said in PARTS)]
)
def test_what_is_not_a_problem_is_refused(text: str, said: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value) == f"{path} is not a problem of the contest's format: {said}."


def test_what_cannot_be_read_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(
        InputError, match=r"p\.json cannot be read \(No such file or directory\); give a readable file\.$"
    ):
        load(path)
    path.write_text("{")
    with pytest.raises(
        InputError,
        match=r"p\.json is not JSON \(.*\); give a problem in the contest's format, \.json or \.json\.gz\.$",
    ):
        load(path)
    path.write_bytes(b"\x1f\x8b cut short")
    with pytest.raises(InputError, match=r"p\.json is a broken gzip file \(.*\); copy it again\.$"):
        load(path)


@pytest.mark.parametrize("name", "GAMS")
def test_the_contests_own_files_are_read(name: str) -> None:
    path = HOME / f"asplos-2025-iopddl-{name}.json.gz"
    if not path.exists():
        pytest.skip(f"the contest's instances are not in {HOME}")
    found = read(path)
    count = {"G": 816, "A": 34932, "M": 32894, "S": 28526}[name]
    assert len(found.problem.node_costs) == count
    first = (0,) * count
    exact = exact_cost(found, first)
    assert isinstance(exact, int)
    assert cost_of(found.problem, first) in (float(exact), np.inf)
