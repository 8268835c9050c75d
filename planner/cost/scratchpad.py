"""What of a step's arrays lies in the memory on the chip, and needs no room in a device's main memory.

XLA's assignment of memory spaces lets an array stay on the chip as long as it is held, if there is room all
that time, and else writes it out and reads it again. Where arrays compete, those that are held shortly win:
what is held from the forward to the backward pass makes room for all that comes and goes meanwhile. About
half of the chip's memory is there for them; the other half has what the running op works on, and weights that
are brought ahead of their use. (libtpu 0.0.42 on a v5e: the peaks of 7 steps of 3 models under 8 schemes.)
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from planner.cost.problem import Floats, Problem, Usage

_FOR_ARRAYS = 0.5  # of the memory on the chip
_BLOCK = 256  # times, about the root of how many a large step has


@dataclasses.dataclass(frozen=True)
class Held:
    """A usage whose array lies in the main memory, with its bytes under the choice."""

    usage: Usage
    bytes: float


def in_main_memory(problem: Problem, choice: Sequence[int], scratchpad_bytes: float) -> list[Held]:
    """The usages of a choice whose arrays lie in a device's main memory: the arguments of the step, and what
    finds no room on the chip. scratchpad_bytes: of the memory on the chip, 0 if it holds no arrays."""
    found, waiting = list[Held](), list[Held]()
    for held in _usages(problem, choice):
        passing = held.usage.first > 0 or held.usage.last < problem.horizon
        (waiting if passing else found).append(held)
    room = _Room(problem.horizon, _FOR_ARRAYS * scratchpad_bytes)
    for held in sorted(waiting, key=lambda held: held.usage.last - held.usage.first):
        if held.usage.first < held.usage.last and not room.takes(held):
            found.append(held)
    return found


class _Room:
    """Bytes that are free at each time. Times are in blocks, of which a whole one is looked at as one: what
    waits from the forward to the backward pass of a deep step is held for most of it, and that is much.

    free: without what is taken of whole blocks, which is in `taken`; least: the least that is free in each.
    """

    def __init__(self, horizon: int, bytes_: float) -> None:
        blocks = horizon // _BLOCK + 1
        self.free, self.taken = np.full((blocks, _BLOCK), bytes_), np.zeros(blocks)
        self.least = np.full(blocks, bytes_)

    def takes(self, held: Held) -> bool:
        """Whether there is room for an array all the time it is held, which is then taken."""
        (first, start), (last, end) = divmod(held.usage.first, _BLOCK), divmod(held.usage.last - 1, _BLOCK)
        ends = [(first, start, end + 1)] if first == last else [(first, start, _BLOCK), (last, 0, end + 1)]
        whole = slice(first + 1, last)
        if held.bytes > self.least[whole].min(initial=np.inf):
            return False
        if any(held.bytes > self.free[b, i:j].min() - self.taken[b] for b, i, j in ends):
            return False
        self.taken[whole] += held.bytes
        self.least[whole] -= held.bytes
        for b, i, j in ends:
            self.free[b, i:j] -= held.bytes
            self.least[b] = self.free[b].min() - self.taken[b]
        return True


def over_time(held: Sequence[Held], horizon: int) -> Floats:
    """Bytes in the main memory at each time, shape (horizon,)."""
    steps = np.zeros(horizon + 1)
    for one in held:
        steps[one.usage.first] += one.bytes
        steps[one.usage.last] -= one.bytes
    return np.cumsum(steps[:-1])


def main_peak(problem: Problem, choice: Sequence[int], scratchpad_bytes: float) -> float:
    """The most bytes that are in a device's main memory at any time."""
    held = in_main_memory(problem, choice, scratchpad_bytes)
    return float(over_time(held, problem.horizon).max(initial=0.0))


def _usages(problem: Problem, choice: Sequence[int]) -> Iterator[Held]:
    for usage in problem.node_usages:
        yield Held(usage, float(usage.bytes[choice[usage.of]]))
    for usage in problem.edge_usages:
        u, w = problem.edges[usage.of]
        yield Held(usage, float(usage.bytes[choice[u], choice[w]]))
