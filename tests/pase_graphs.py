"""PaSE's own cost graphs, where they are: the files, the optimum that the table beside them lists, and the
choice that splits every op over the batch."""

import gzip
import json
import pathlib
import re

from planner.cost.contest import load
from planner.cost.problem import Problem

HOME = pathlib.Path(__file__).resolve().parents[1].parent / "shared" / "pase"
README = HOME / "README.md"
NAMES = [
    *(f"{net}_p{p}" for net in ("alexnet", "inception3", "rnnlm") for p in (4, 8, 16, 32, 64)),
    *(f"transformer_p{p}" for p in (4, 8, 16, 32)),
]
BATCH = {"alexnet": 128, "inception3": 128, "rnnlm": 64, "transformer": 64}  # examples: the paper, section IV


def problem_of(name: str) -> Problem:
    """The problem of a graph; costs in FLOP."""
    return load(HOME / f"{name}.json.gz")


def optimum(name: str) -> int:
    """The minimum that the table beside the graphs lists."""
    for line in README.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == name and re.fullmatch(r"[\d,]+", cells[4]):
            return int(cells[4].replace(",", ""))
    raise LookupError(name)


def data_parallel(name: str) -> tuple[int, ...]:
    """The choice that splits the batch of every op as far as it goes, and nothing else."""
    content = json.loads(gzip.decompress((HOME / f"{name}.json.gz").read_bytes()))
    batch = BATCH[name.partition("_")[0]]
    choice = []
    for label in content.get("labels") or content["problem"]["labels"]:
        dim = label["dims"].index(batch)
        only = [
            (degrees[dim], i)
            for i, degrees in enumerate(label["degrees"])
            if max((*degrees[:dim], *degrees[dim + 1 :]), default=1) == 1
        ]
        choice.append(max(only)[1])
    return tuple(choice)
