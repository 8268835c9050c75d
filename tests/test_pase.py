"""PaSE's own cost graphs (IPDPS 2021): every optimum that its table lists is reached exactly."""

import pathlib
import re

import pytest

from planner.cost.contest import load
from planner.cost.problem import cost_of
from planner.solvers import auto, elimination
from planner.solvers.interning import Interner
from planner.solvers.network import network_of
from planner.solvers.orders import greedy_order

HOME = pathlib.Path(__file__).resolve().parents[1].parent / "shared" / "pase"
README = HOME / "README.md"
NAMES = [
    *(f"{net}_p{p}" for net in ("alexnet", "inception3", "rnnlm") for p in (4, 8, 16, 32, 64)),
    *(f"transformer_p{p}" for p in (4, 8, 16, 32)),
]


def optimum(name: str) -> int:
    """The minimum that the table beside the graphs lists."""
    for line in README.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == name and re.fullmatch(r"[\d,]+", cells[4]):
            return int(cells[4].replace(",", ""))
    raise LookupError(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_listed_optimum_is_reached_exactly(name: str) -> None:
    if not README.exists():
        pytest.skip(f"PaSE's cost graphs are not in {HOME}")
    problem = load(HOME / f"{name}.json.gz")
    for found in (elimination.solve(problem), auto.solve(problem)):
        assert found.cost == found.lower_bound == cost_of(problem, found.choice) == optimum(name)
        assert found.stopped == "exact"


def test_repeated_layers_of_the_transformer_are_worked_out_once() -> None:
    if not README.exists():
        pytest.skip(f"PaSE's cost graphs are not in {HOME}")
    intern = Interner()
    network = network_of(load(HOME / "transformer_p8.json.gz"), intern)
    order = greedy_order(network, intern, "degree")
    assert order is not None
    found = elimination.eliminate(network, order, intern)
    assert found.recalled > found.products
    assert found.entries < order.entries / 3
