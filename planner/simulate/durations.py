"""Durations: what the items and lanes of a step do under a choice, and for how long.

A *stage* is one thing on one stream, or a collective on all its wires at once. Times are whole picoseconds:
they add up the same in any order, so that a part that is simulated anew ends exactly as the whole does.

A matmul whose sums a TPU scatters by a loop of permutes around its parts takes as long as the longer of the
two, and the shorter one's first part of n:   max(matmul, permutes) + min(matmul, permutes) / n.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from planner.cost.carried import behind
from planner.cost.tables import NodeTable, Tables
from planner.cost.traffic import Transfer, moves, row_of
from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph
from planner.sharding.spec import Spec, ways
from planner.simulate.policy import Policy

PICO = 1_000_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """ticks: picoseconds of one run. wires: the streams a collective takes. alone: whether compute stands
    still meanwhile, or is itself what runs. work: picoseconds of compute in it. slows: the part of the
    compute that runs beside it which it takes. what: the collective, None for the work of a node."""

    ticks: int
    wires: tuple[int, ...] = ()
    alone: bool = True
    work: int = 0
    slows: float = 0.0
    what: Transfer | None = None


Stages = tuple[Stage, ...]


def ticks(seconds: float) -> int:
    """Whole picoseconds."""
    return round(seconds * PICO)


class Durations:
    """The stages of all nodes and links of one problem, looked up once each. wires: the names of the streams
    that collectives run on."""

    def __init__(self, graph: Graph, coarse: Coarse, tables: Tables, policy: Policy) -> None:
        self.graph, self.coarse, self.tables, self.policy = graph, coarse, tables, policy
        mesh = tables.network.mesh
        kinds = {wire.name: wire.kind for wires in mesh.wires for wire in wires}
        self.wires = tuple(sorted(kinds))
        of_axis = {
            axis: [wire.name for wire in wires] for axis, wires in zip(mesh.axes, mesh.wires, strict=True)
        }
        self.streams = {
            axis: tuple(sorted(self.wires.index(name) for name in set(names)))
            for axis, names in of_axis.items()
        }
        self.slows = tuple(policy.slowdown.get(kinds[name], 0.0) for name in self.wires)
        self.of_node: dict[tuple[int, int, float, float | None], Stages] = {}
        self.shelves: dict[tuple[int, float], dict[int, Stages]] = defaultdict(dict)
        self.of_link: dict[tuple, Stages] = {}
        self.link_keys = [self._link_key(number) for number in range(len(coarse.links))]

    def _link_key(self, number: int) -> tuple:
        link = self.coarse.links[number]
        port = self.coarse.nodes[link.user].inputs[link.into]
        value = self.graph.values[port.value]
        made, read = (
            self.tables.nodes[link.maker].outputs[link.out],
            self.tables.nodes[link.user].inputs[link.into],
        )
        rounded = (link.user, link.into) in self.tables.rounded
        return id(made), id(read), value.bytes, value.dtype, row_of(value), port.repeat, rounded

    def shelf(self, v: int, repeat: float) -> dict[int, Stages]:
        """By strategy, the stages of a node that have been looked up; always empty where they depend on the
        strategies of other nodes too."""
        return self.shelves[id(self.tables.nodes[v]), repeat] if self.depends(v) == (v,) else {}

    def depends(self, v: int) -> tuple[int, ...]:
        """The nodes whose strategies have a part in the stages of a node."""
        tables = self.tables
        joined = (tables.joined[v],) if v in tables.joined else ()
        carried = (tables.carried[v].link.user,) if v in tables.carried else ()
        return (v, *joined, *carried)

    def node(self, v: int, choice: Sequence[int], repeat: float) -> Stages:
        """The work of a node and what finishes its sums. repeat: runs of its segment in a step."""
        table, c = self.tables.nodes[v], choice[v]
        runs = None  # of the collectives, if not their own
        if self.tables.is_spared(v, choice):
            runs = 0.0
        elif self.tables.is_behind(v, choice):
            runs = self.tables.carried[v].runs
        key = (id(table), c, repeat, runs)
        if key not in self.of_node:
            sums = table.sums[c] if runs is None else behind(table.sums[c], runs) if runs else ()
            self.of_node[key] = self._node(table, c, sums, repeat)
            if runs is None:
                self.shelves[id(table), repeat][c] = self.of_node[key]
        return self.of_node[key]

    def _node(self, table: NodeTable, c: int, sums: Sequence[Transfer], repeat: float) -> Stages:
        work = ticks(float(table.work[c]) / repeat)
        plain = (Stage(work, work=work),) if work else ()
        stages = [stage for one in sums if (stage := self._stage(one, repeat)).ticks]
        looped = [s for s in stages if s.what and s.what.kind == "reduce_scatter" and s.what.ring != 1.0]
        if not looped or not work:
            return (*plain, *stages)
        (loop,) = looped
        rest = tuple(s for s in stages if s is not loop)
        shorter = min(work, loop.ticks) // ways(loop.what.axes, self.tables.network.sizes) if loop.what else 0
        whole = dataclasses.replace(loop, ticks=max(work, loop.ticks) + shorter, alone=True, work=work)
        return (whole, *rest)

    def _stage(self, one: Transfer, repeat: float) -> Stage:
        """The runs of a collective in one run of its segment, one after the other."""
        wires = tuple(sorted({stream for axis in one.axes for stream in self.streams[axis]}))
        alone = one.kind not in self.policy.asynchronous
        slows = max((self.slows[wire] for wire in wires), default=0.0)
        seconds = self.tables.network.run_seconds(one) * one.times / repeat
        return Stage(ticks(seconds), wires, alone, 0, slows, one)

    def link(self, number: int, made: int, read: int, repeat: float) -> Stages:
        """What brings a value from where it is kept to where it is read. made, read: the strategies of maker
        and reader."""
        link, tables = self.coarse.links[number], self.tables
        source = tables.nodes[link.maker].outputs[link.out]
        target = tables.nodes[link.user].inputs[link.into]
        key = (self.link_keys[number], source.index.item(made), target.index.item(read), repeat)
        found = self.of_link.get(key)
        if found is None:
            found = self.of_link[key] = self._link(number, source.at(made), target.at(read), repeat)
        return found

    def _link(self, number: int, source: Spec, target: Spec, repeat: float) -> Stages:
        link = self.coarse.links[number]
        port = self.coarse.nodes[link.user].inputs[link.into]
        rounded = (link.user, link.into) in self.tables.rounded
        found = moves(port, self.graph.values[port.value], rounded, source, target, self.tables.network)
        stages = (self._stage(one, repeat) for one in found)
        return tuple(stage for stage in stages if stage.ticks)
