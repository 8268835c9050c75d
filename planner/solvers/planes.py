"""Cutting planes over the Lagrangian of the memory limit (Kelley 1960), for a whole tree of searches.

    L(prices)  =  min_x  cost(x) + sum_t prices_t (usage_t(x) - limit)          prices >= 0

Every choice x gives a plane over L, the sum above at that x; over the L of a part of all choices, those that
lie in it do. A small linear programme gives the prices where the lowest plane is highest; its dual gives
weights to the planes that meet there, by which their choices keep the limit on average. Only times at which
some choice broke the limit have a price.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from planner.cost.problem import Floats
from planner.solvers.priced import Allowed

CLOSE = 1e-6  # relative, of prices, weights and heights
NEW_TIMES = 4  # that get a price after one choice


@dataclasses.dataclass(frozen=True)
class Top:
    """Where the lowest plane is highest. prices: shape (times,); height: of it; weights: of all choices;
    at_edge: whether some price is the highest that was allowed."""

    prices: Floats
    height: float
    weights: Floats
    at_edge: bool


class Planes:
    """The choices met, as planes. limit: bytes; unit: what they are counted in. times: how many there are;
    active: those that have a price."""

    def __init__(self, nodes: int, limit: float, unit: float, times: int) -> None:
        self.limit, self.unit, self.times = limit, unit, times
        self.active: set[int] = set()
        self.known: set[tuple[int, ...]] = set()
        self.costs: list[float] = []
        self.over: list[Floats] = []
        self.fits: list[bool] = []
        self._choices = np.zeros((64, nodes), dtype=np.int64)

    @property
    def choices(self) -> NDArray[np.int64]:
        """One row per plane."""
        return self._choices[: len(self.costs)]


def add(planes: Planes, choice: tuple[int, ...], cost: float, usage: Floats) -> None:
    """Adds an allowed choice. usage: bytes at each time."""
    if choice in planes.known:
        return
    planes.known.add(choice)
    count = len(planes.costs)
    if count == len(planes._choices):
        planes._choices = np.vstack([planes._choices, np.zeros_like(planes._choices)])
    planes._choices[count] = choice
    planes.costs.append(cost)
    planes.over.append(usage - planes.limit)
    planes.fits.append(bool((usage <= planes.limit).all()))
    planes.active.update(_worst(planes.over[-1]))


def inside(planes: Planes, left: Mapping[int, Allowed]) -> NDArray[np.intp]:
    """The choices that use only strategies of `left`, of the nodes it names."""
    within = np.ones(len(planes.costs), dtype=bool)
    for v, able in left.items():
        within &= able[planes.choices[:, v]]
    return np.flatnonzero(within)


def top(planes: Planes, which: NDArray[np.intp], box: float) -> Top:
    """The top of some planes, at least one, with prices up to `box`, in the highest of all costs per unit of
    bytes."""
    times = sorted(planes.active)
    scale = max(map(abs, planes.costs)) or 1.0
    over = np.array([planes.over[k][times] for k in which]) / planes.unit
    sides = np.hstack([-over, np.ones((len(which), 1))])
    goal = np.zeros(len(times) + 1)
    goal[-1] = -1.0
    bounds = [(0.0, box)] * len(times) + [(None, None)]
    costs = np.array(planes.costs)[which] / scale
    solved = linprog(goal, A_ub=sides, b_ub=costs, bounds=bounds, method="highs")
    found = np.asarray(solved.x)
    prices, weights = np.zeros(planes.times), np.zeros(len(planes.costs))
    prices[times] = found[:-1] * scale / planes.unit
    weights[which] = -np.asarray(solved.ineqlin.marginals)
    at_edge = bool((found[:-1] >= box * (1.0 - CLOSE)).any())
    return Top(prices, float(found[-1]) * scale, weights, at_edge)


def _worst(over: Floats) -> list[int]:
    """The worst time of each stretch over the limit, of the few worst stretches."""
    times = np.flatnonzero(over > 0.0)
    stretches = np.split(times, np.flatnonzero(np.diff(times) > 1) + 1) if len(times) else []
    tops = [int(stretch[over[stretch].argmax()]) for stretch in stretches]
    return sorted(tops, key=lambda at: (-over[at], at))[:NEW_TIMES]
