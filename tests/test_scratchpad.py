"""What lies in the memory on a chip: what is there shortly before what waits, and never an argument."""

import random

import numpy as np
import pytest

from planner.cost.problem import Problem, Usage, peak_of
from planner.cost.scratchpad import in_main_memory, main_peak

PARAMETER = Usage(0, 0, 8, np.array([10.0]))
SAVED = Usage(1, 1, 7, np.array([5.0, 20.0]))  # from the forward to the backward pass
PASSING = Usage(2, 3, 5, np.array([4.0]))
COPY = Usage(0, 5, 6, np.array([[2.0], [3.0]]))  # on the edge between the two

PROBLEM = Problem(
    node_costs=(np.zeros(1), np.zeros(2), np.zeros(1)),
    edges=((1, 2),),
    edge_costs=(np.zeros((2, 1)),),
    node_usages=(PARAMETER, SAVED, PASSING),
    edge_usages=(COPY,),
    horizon=8,
)


@pytest.mark.parametrize(
    ("on_chip", "main", "peak"),
    [
        (0.0, [PARAMETER, SAVED, PASSING, COPY], 19.0),
        (8.0, [PARAMETER, SAVED], 15.0),  # half of it has room for the two that are there shortly
        (17.0, [PARAMETER, SAVED], 15.0),
        (18.0, [PARAMETER], 10.0),
    ],
)
def test_what_is_held_shortly_comes_first(on_chip, main, peak):
    found = in_main_memory(PROBLEM, (0, 0, 0), on_chip)
    assert {id(held.usage) for held in found} == set(map(id, main))
    assert main_peak(PROBLEM, (0, 0, 0), on_chip) == peak


def test_the_choice_says_how_large_an_array_is():
    (saved,) = (held for held in in_main_memory(PROBLEM, (0, 1, 0), 8.0) if held.usage is SAVED)
    assert saved.bytes == 20.0
    assert main_peak(PROBLEM, (0, 1, 0), 0.0) == peak_of(PROBLEM, (0, 1, 0)) == 34.0


def test_many_that_are_held_for_long_find_the_room_that_there_is_at_every_time():
    draw, horizon = random.Random(0), 2000
    usages = []
    for v in range(300):
        first = draw.randrange(horizon - 1)
        last = draw.randrange(first + 1, horizon)
        usages.append(Usage(v, first, last, np.array([float(draw.randrange(1, 9))])))
    problem = Problem((np.zeros(1),) * 300, (), (), tuple(usages), (), horizon=horizon)
    room, outside = np.full(horizon, 50.0), []
    for usage in sorted(usages, key=lambda usage: usage.last - usage.first):
        times = slice(usage.first, usage.last)
        if usage.bytes[0] <= room[times].min():
            room[times] -= usage.bytes[0]
        else:
            outside.append(usage)
    found = in_main_memory(problem, (0,) * 300, 100.0)
    assert 0 < len(outside) < 300
    assert [held.usage for held in found] == outside
