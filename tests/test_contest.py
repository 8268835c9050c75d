"""Problems as files: what is written is read back, and what is not a problem is refused in one sentence."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from planner.cost.contest import load, save
from planner.cost.problem import FORBIDDEN, Problem, Usage, cost_of, usage_over_time
from planner.errors import InputError

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


def test_what_is_not_a_problem_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(
        InputError, match=r"p\.json cannot be read \(No such file or directory\); give a readable file\."
    ):
        load(path)
    for text in ("{", "{}", '{"problem": {"nodes": {}}}', "[1]"):
        path.write_text(text)
        with pytest.raises(
            InputError,
            match=r"p\.json is not a problem of the contest's format \(.*\); "
            r"give a JSON file with problem\.nodes and problem\.edges\.",
        ):
            load(path)
