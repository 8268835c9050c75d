"""Refine: from the best choice by prices that add up to one that is better by its timeline.

    discounted   the optimum when what can run beside compute costs a part of its price: between all of it,
                 which the search has solved, and next to nothing
    walk         FlexFlow's search (`planner.solvers.mcmc`) from the best so far, by delta simulation

The first finds other regions of the space, the second what is near. The result is never behind the start, and
keeps the memory limit if that does. Where neither gathers nor sums run beside compute there is nothing to do.
"""

import dataclasses
import random
import time
from collections.abc import Mapping

from planner.candidates import Candidate, best_of, timed
from planner.cost.problem import Choice, Floats, Problem, cost_of, peak_of
from planner.cost.tables import Tables
from planner.simulate.delta import Delta
from planner.simulate.durations import PICO
from planner.simulate.policy import Policy, policy_of
from planner.simulate.timeline import Simulator, Simulators
from planner.solvers import auto
from planner.solvers.evaluator import Additive
from planner.solvers.mcmc import BLOCKS, TEMPERATURE, walk
from planner.solvers.proposals import block, mixed, single

_DISCOUNTS = (0.5, 0.1)
_COSTLY = frozenset(("all_gather", "all_reduce"))  # of what plans send, nearly all
_PROPOSALS = (
    1000  # with a limit in proposals, not seconds, a plan is the same on every machine that is fast enough
)
REFINED = "refined by its timeline"


class ByTimeline:
    """An evaluator for walks: seconds of a step by its timeline; what is forbidden or does not fit costs what
    it does in a sum."""

    def __init__(self, delta: Delta, problem: Problem) -> None:
        self.delta, self.added = delta, Additive(problem, tuple(delta.choice))
        self.choice, self.cost = self.added.choice, delta.ticks / PICO

    def price(self, changes: Mapping[int, int]) -> float:
        """Seconds after the changes."""
        added = self.added.price(changes)
        return added if added >= self.added.wall else self.delta.price(changes) / PICO

    def allows(self, changes: Mapping[int, int]) -> bool:
        """Whether the memory limit holds after the changes, wherever they use more than before."""
        return self.added.allows(changes)

    def move(self, changes: Mapping[int, int]) -> None:
        """Makes the changes."""
        self.added.move(changes)
        self.delta.move(changes)
        self.cost = self.delta.ticks / PICO


def refined(simulators: Simulators, best: Candidate, seconds: float, seed: int) -> Candidate:
    """The best of its mesh by the timeline, as far as it is found in the time."""
    policy = policy_of(best.tables.network.machine)
    links, simulator = len(simulators.coarse.links), simulators.of(best.tables)
    if policy.asynchronous.isdisjoint(_COSTLY) or not (best.fits and simulators.coarse.nodes):
        return best
    if seconds <= 0.0:
        return best
    until = time.monotonic() + seconds
    found = [best]
    for part in _DISCOUNTS:
        if (left := until - time.monotonic()) > 0:
            problem = _discounted(best.tables, links, policy, part)
            choice = auto.solve(problem, seconds=left / 2, seed=seed, starts=[best.choice.choice])
            found.append(_candidate(best, choice.choice))
    start = best_of([timed(simulators, candidate) for candidate in found])
    evaluator = ByTimeline(Delta(simulator, start.choice.choice), start.tables.problem)
    propose = mixed(single(evaluator.added.unary), block(evaluator.added.unary, evaluator.added.near), BLOCKS)
    heat, draw = TEMPERATURE * evaluator.cost, random.Random(seed)
    walked = walk(evaluator, propose, heat, draw, proposals=_PROPOSALS, until=until)
    if walked.cost == start.seconds:
        return start
    kept = _without_needless(simulator, start, walked.choice, until)
    return best_of([start, timed(simulators, _candidate(best, kept))])


def _without_needless(
    simulator: Simulator, start: Candidate, choice: tuple[int, ...], until: float
) -> tuple[int, ...]:
    """The choice without the changes that make it no faster: what runs beside compute costs a walk
    nothing."""
    evaluator = ByTimeline(Delta(simulator, choice), start.tables.problem)
    for v, before in enumerate(start.choice.choice):
        if time.monotonic() > until:
            break
        changes = {v: before}
        if choice[v] != before and evaluator.price(changes) <= evaluator.cost and evaluator.allows(changes):
            evaluator.move(changes)
    return tuple(evaluator.choice)


def _candidate(best: Candidate, choice: tuple[int, ...]) -> Candidate:
    problem = best.tables.problem
    cost, peak, bound = cost_of(problem, choice), peak_of(problem, choice), best.choice.lower_bound
    return Candidate("", best.mesh, best.tables, Choice(choice, cost, bound, peak, REFINED))


def _discounted(tables: Tables, links: int, policy: Policy, part: float) -> Problem:
    """The problem when reshards, if gathers can run beside compute, and finishing sums, if all-reduces can,
    cost a part of what they do. links: how many of the edges are reshards."""
    problem, known = tables.problem, {}
    moves, sums = (part if kind in policy.asynchronous else 1.0 for kind in ("all_gather", "all_reduce"))

    def scaled(costs: Floats, work: Floats | float, factor: float) -> Floats:
        key = (id(costs), factor)
        if key not in known:
            known[key] = work + factor * (costs - work)
        return known[key]

    nodes = zip(problem.node_costs, tables.nodes, strict=True)
    edges = enumerate(problem.edge_costs)
    return dataclasses.replace(
        problem,
        node_costs=tuple(scaled(costs, table.work, sums) for costs, table in nodes),
        edge_costs=tuple(scaled(costs, 0.0, moves if e < links else sums) for e, costs in edges),
    )
