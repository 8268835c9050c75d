"""Lower bounds by message passing: sequential tree-reweighted min-sum (TRW-S).

Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 2006, section 4. Nodes
are walked in index order, forward and backward in turn; with messages M_uv the network is rewritten, without
changing any choice's value, as

    hat_v[a]      =  unary_v[a] + sum_u M_uv[a]
    hat_uv[a, b]  =  pairs_uv[a, b] - M_uv[b] - M_vu[a]

and the update of the edges that leave v in the direction of the walk is

    M_vw[b]       =  min_a  hat_v[a] / n_v  -  M_wv[a]  +  pairs_vw[a, b],     n_v = max(edges before, after)

The network is a sum of monotonic chains, n_v through node v, and the bound is the sum of their minima; it
never falls. When the walk stands at v, hat_v / n_v is the min-marginal of each chain through v, so

    every choice with x_v = a has a value  >=  bound then + hat_v[a] - min hat_v

which is what strategies are dropped by; the bound of that moment is no lower than that before
the walk. Messages live on classes of strategies (`planner.solvers.factors`).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from planner.cost.problem import Floats
from planner.solvers.factors import Factor, Map
from planner.solvers.interning import Interner
from planner.solvers.network import Network

Runs = tuple[Map, Map] | None  # strategies sorted by class, and where each class begins; None: one a class


@dataclasses.dataclass(frozen=True)
class _Side:
    """One edge seen from one end. classes, runs: of its strategies. table: [other's class, this end's].
    inward, outward: the numbers of the messages from and to the other end."""

    classes: Map
    runs: Runs
    table: Floats
    inward: int
    outward: int


class Messages:
    """The state of the walk. later[v], earlier[v]: the edges to higher and to lower nodes. bound: of the
    minimum. base: the bound before the last walk. excess[v][a]: by how much, at least, the value of a choice
    with x_v = a exceeds `base`. Every node needs a strategy that is allowed."""

    def __init__(self, network: Network, intern: Interner) -> None:
        count = len(network.unary)
        wall = _wall(network)
        self.unary = network.unary
        self.later: list[list[_Side]] = [[] for _ in range(count)]
        self.earlier: list[list[_Side]] = [[] for _ in range(count)]
        self.messages: list[Floats] = []
        self.bound = self.base = -np.inf
        self.excess: list[Floats] = [np.zeros(len(costs)) for costs in network.unary]
        for (u, w), factor in network.pairs.items():
            turned, table = _finite(factor, wall, intern)
            number = len(self.messages)
            self.messages += [np.zeros(table.shape[0]), np.zeros(table.shape[1])]
            runs = [intern.recall(("runs", id(one)), lambda one=one: _runs(one)) for one in factor.maps]
            self.later[u].append(_Side(factor.maps[0], runs[0], turned, number, number + 1))
            self.earlier[w].append(_Side(factor.maps[1], runs[1], table, number + 1, number))
        self.nodes = [v for v in range(count) if self.later[v] or self.earlier[v]]
        self.share = [1.0 / max(len(a), len(b), 1) for a, b in zip(self.later, self.earlier, strict=True)]
        self.alone = sum(float(network.unary[v].min()) for v in set(range(count)) - set(self.nodes))


def walk(state: Messages) -> None:
    """One forward and one backward walk; improves `bound` and renews `excess`."""
    state.base = state.bound
    for v in state.nodes:
        hat = _hat(state, v)
        _send(state, state.later[v], (hat - hat.min()) * state.share[v])
    bound = state.alone
    for v in reversed(state.nodes):
        hat = _hat(state, v)
        least = float(hat.min())
        hat -= least
        state.excess[v] = hat
        bound += least + _send(state, state.earlier[v], hat * state.share[v])
    state.bound = max(state.bound, bound)


def _hat(state: Messages, v: int) -> Floats:
    hat = state.unary[v].copy()
    for side in state.later[v]:
        hat += state.messages[side.inward][side.classes]
    for side in state.earlier[v]:
        hat += state.messages[side.inward][side.classes]
    return hat


def _send(state: Messages, sides: Sequence[_Side], part: Floats) -> float:
    """Renews the messages from one node to its `sides`; the sum of the minima taken off them."""
    taken = 0.0
    for side in sides:
        least = part if side.runs is None else np.minimum.reduceat(part[side.runs[0]], side.runs[1])
        message = np.minimum.reduce(side.table + (least - state.messages[side.inward]), axis=1)
        low = float(np.minimum.reduce(message))
        state.messages[side.outward] = message - low
        taken += low
    return taken


def _runs(classes: Map) -> Runs:
    order = np.argsort(classes, kind="stable")
    begins = np.flatnonzero(np.diff(classes[order], prepend=-1))
    return (
        None
        if np.array_equal(order, np.arange(len(classes))) and len(begins) == len(order)
        else (order, begins)
    )


def _wall(network: Network) -> float:
    """A finite cost in place of a forbidden one, too high to be part of any optimum that is allowed."""
    tables = (*network.unary, *(factor.table for factor in network.pairs.values()))
    return 2.0 * sum(float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) for table in tables) + 1.0


def _finite(factor: Factor, wall: float, intern: Interner) -> tuple[Floats, Floats]:
    """The table transposed and as it is, with `wall` for infinity, so that no message is inf - inf."""

    def make() -> tuple[Floats, Floats]:
        table = np.where(np.isfinite(factor.table), factor.table, wall)
        return np.ascontiguousarray(table.T), table

    return intern.recall(("finite", id(factor.table), wall), make)
