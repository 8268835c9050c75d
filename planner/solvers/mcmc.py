"""FlexFlow's search: a Metropolis walk over choices (Jia, Zaharia and Aiken, MLSys 2019, section 6).

    states      choices x
    goal        p(x)  ~  exp(-cost(x) / T)
    proposal    one node at random takes one of its strategies at random: x'; it is symmetric
    acceptance  min(1, exp((cost(x) - cost(x')) / T)), if the memory limit holds wherever x' uses more than x
    starts      what is known already, and a choice at random; each walk ends with its part of the time, or
                after half of that without a better choice

T is constant, as published; its value is not, save in FlexFlow's first code, which takes 0.2 ms for steps of
some hundred: a thousandth of the start's cost, which is what is taken here. Changing one node pays a reshard
on each side of it, so the walk alone stays where it began; some proposals therefore move whole blocks
(`planner.solvers.proposals`). What a move costs, an evaluator says (`planner.solvers.evaluator`): here by the
tables of the problem, elsewhere by a simulated timeline. The only bound is the sum of the tables' minima.
"""

import dataclasses
import math
import random
import sys
import time
from collections.abc import Sequence

from planner.cost.problem import Choice, Problem
from planner.solvers.evaluator import Additive, Evaluator
from planner.solvers.minplus import INTERRUPTED
from planner.solvers.proposals import Propose, block, mixed, single
from planner.solvers.record import Record, answer, note

TEMPERATURE = 1e-3  # of the cost of the start
BLOCKS = 0.5  # of the proposals
PATIENCE = 0.5  # of a walk's proposals or time: without a better choice for so long, it ends
LOOK = 256  # proposals between two looks at the clock


@dataclasses.dataclass(frozen=True)
class Walked:
    """The best choice of a walk, the evaluator's cost of it, and what the walk did. cut: why it was cut
    short, '' if it was not."""

    choice: tuple[int, ...]
    cost: float
    proposals: int
    accepted: int
    cut: str = ""


def solve(
    problem: Problem,
    *,
    seconds: float = 60.0,
    seed: int = 0,
    starts: Sequence[Sequence[int]] = (),
    proposals: int | None = None,
    temperature: float = TEMPERATURE,
    blocks: float = BLOCKS,
    randoms: int = 1,
) -> Choice:
    """The best choice met. starts: full choices to walk from, without any the strategies that are cheapest by
    themselves; so many at random (`randoms`) are walked from as well. proposals: of all walks together; the
    answer is the same for a seed and a number of proposals, if the time does not run out. temperature: in
    parts of the cost of each start. blocks: the part of the proposals that move a block. Interrupting it
    (KeyboardInterrupt) gives the best so far."""
    began, record, draw = time.monotonic(), Record(problem), random.Random(seed)
    given = [tuple(start) for start in starts]
    given = given or [tuple(int(costs.argmin()) for costs in problem.node_costs)]
    for _ in range(randoms):
        given.append(tuple(int(draw.random() * len(costs)) for costs in problem.node_costs))
    cut = ""
    for index, start in enumerate(given):
        until = began + seconds * (index + 1) / len(given)
        walked = _from(record, start, temperature, blocks, draw, proposals and proposals // len(given), until)
        if walked.cut:
            cut = walked.cut
            break
    return answer(record, cut)


def _from(
    record: Record,
    start: tuple[int, ...],
    temperature: float,
    blocks: float,
    draw: random.Random,
    proposals: int | None,
    until: float,
) -> Walked:
    """One walk, noted. From a start that is not allowed or does not fit it only goes downhill: the cost of
    such a one is no measure of a temperature."""
    evaluator = Additive(record.problem, start)
    heat = temperature * abs(evaluator.cost) if record.fits(note(record, start)) else 0.0
    propose = mixed(single(evaluator.unary), block(evaluator.unary, evaluator.near), blocks)
    walked = walk(evaluator, propose, heat, draw, proposals=proposals, until=until)
    note(record, walked.choice)
    return walked


def walk(
    evaluator: Evaluator,
    propose: Propose,
    temperature: float,
    draw: random.Random,
    *,
    proposals: int | None = None,
    until: float = math.inf,
    patience: float = PATIENCE,
) -> Walked:
    """The walk from the evaluator's choice. temperature: in the unit of its cost. until: time.monotonic() at
    which it ends, if `proposals` do not end it before. patience: the part of its work, or else of its time,
    that it goes on without a better choice."""
    best, least = tuple(evaluator.choice), evaluator.cost
    at_best, made, accepted, cut = False, 0, 0, ""
    began = better = time.monotonic()
    better_at, most = 0, sys.maxsize if proposals is None else proposals
    try:
        while made < most:
            if made % LOOK == 0:
                now = time.monotonic()
                if now > until or (proposals is None and now - better > patience * (until - began)):
                    break
            if proposals is not None and made - better_at > patience * proposals:
                break
            made += 1
            changes = propose(evaluator.choice, draw)
            rise = evaluator.price(changes) - evaluator.cost
            if rise > 0.0 and (temperature <= 0.0 or draw.random() >= math.exp(-rise / temperature)):
                continue
            if not evaluator.allows(changes):
                continue
            if at_best and rise > 0.0:  # copied only when it is left: on the way down every move is the best
                best, at_best = tuple(evaluator.choice), False
            evaluator.move(changes)
            accepted += 1
            if evaluator.cost < least:
                least, at_best, better, better_at = evaluator.cost, True, now, made
    except KeyboardInterrupt:
        cut = INTERRUPTED
    return Walked(tuple(evaluator.choice) if at_best else best, least, made, accepted, cut)
