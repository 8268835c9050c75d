"""From nodes to the Problem: one variable per node, one table per link, bytes over time.

    node cost[s]     = work of the node under strategy s + collectives that finish its partial sums
    edge cost[s, t]  = collectives from the spec the maker leaves under s to the spec the user reads under t
    usage            = what each node keeps from when it is made until it is last read, the step's arguments
                       all the time, and a resharded copy while it is needed

Nodes with the same signature share strategies and costs, links between the same signatures share one table:
48 equal layers cost as much to build as one.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.cost.carried import Carried, carried_costs, carried_sums, is_moved
from planner.cost.edges import EdgePricer
from planner.cost.joined import joined_sums, joint_costs, remaining
from planner.cost.memory import node_usages, replaced_usages
from planner.cost.problem import Problem, Usage
from planner.cost.roofline import touched_parts, work_seconds
from planner.cost.traffic import Network, Transfer, finishes, rounded_ports, row_of
from planner.graph.coarsen import Coarse, Link, Node
from planner.graph.graph import Graph
from planner.sharding.pin import Held, held_strategies
from planner.sharding.spec import Spec
from planner.sharding.strategy import Strategy, of_state, result_spec, spec_of, strategies

Ints = NDArray[np.int64]
Pins = Mapping[int, tuple[Held, ...]]  # by node id


@dataclasses.dataclass(frozen=True)
class PortSpecs:
    """The different specs a port takes, and which one each strategy gives it."""

    specs: tuple[Spec, ...]
    index: Ints

    def at(self, strategy: int) -> Spec:
        """The spec under a strategy."""
        return self.specs[self.index[strategy]]


@dataclasses.dataclass(frozen=True)
class NodeTable:
    """What all nodes of one signature share. cost: seconds of the work and the sums; sums: the collectives
    that finish the sums of the first such node, per strategy."""

    strategies: tuple[Strategy, ...]
    work: NDArray[np.float64]
    cost: NDArray[np.float64]
    sums: tuple[tuple[Transfer, ...], ...]
    inputs: tuple[PortSpecs, ...]
    outputs: tuple[PortSpecs, ...]


@dataclasses.dataclass(frozen=True)
class Tables:
    """The Problem of one step on one mesh, with what its numbers stand for. Its edges are the links, then the
    joined sums, then the carried ones. rounded: see `rounded_ports`. joined: see `joined_sums`. carried: see
    `carried_sums`."""

    problem: Problem
    nodes: tuple[NodeTable, ...]
    network: Network
    rounded: frozenset[tuple[int, int]]
    joined: Mapping[int, int]
    carried: Mapping[int, Carried]

    def is_spared(self, node: int, choice: Sequence[int]) -> bool:
        """Whether the sum that a node's is joined with finishes it too."""
        first = self.joined.get(node)
        if first is None:
            return False
        mine, theirs = self.nodes[node].sums[choice[node]], self.nodes[first].sums[choice[first]]
        return not remaining(theirs, mine)

    def is_behind(self, node: int, choice: Sequence[int]) -> bool:
        """Whether the sum of a node is finished behind the loop that carries it."""
        if node not in self.carried:
            return False
        link, table = self.carried[node].link, self.nodes[node]
        made = table.outputs[link.out].at(choice[node])
        read = self.nodes[link.user].inputs[link.into].at(choice[link.user])
        return is_moved(table.strategies[choice[node]], made, read)


def build(graph: Graph, coarse: Coarse, network: Network, limit: float, pins: Pins | None = None) -> Tables:
    """The Problem of a coarsened graph on one mesh, whose devices hold `limit` bytes each. pins: of some
    nodes, which then have only the strategies under which these hold."""
    return _Build(graph, coarse, network, pins or {}).tables(limit)


class _Build:
    def __init__(self, graph: Graph, coarse: Coarse, network: Network, pins: Pins) -> None:
        self.graph, self.coarse, self.network, self.pins = graph, coarse, network, pins
        self.sizes, self.pricer = network.sizes, EdgePricer(network)
        self.rounded = rounded_ports(graph, coarse, network)
        self.op = {op.id: op for op in graph.ops}
        self.shared: dict[tuple, NodeTable] = {}
        self.joint_tables: dict[tuple[int, int], NDArray[np.float64]] = {}
        self.carried_tables: dict[tuple, NDArray[np.float64]] = {}
        self.edge_tables: dict[tuple, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def tables(self, limit: float) -> Tables:
        nodes, keys = [], []
        feeds = self._copy_feeds()
        for node in self.coarse.nodes:
            key = self._signature(node)
            if node.kind == "copy":  # its specs are those its readers want
                key = (*key, tuple((keys[user], into) for user, into in feeds[node.id]))
            if key not in self.shared:
                readers = [nodes[user].inputs[into] for user, into in feeds.get(node.id, ())]
                self.shared[key] = self._table(node, readers)
            nodes.append(self.shared[key])
            keys.append(id(self.shared[key]))
        costs, edge_usages = [], []
        for e, link in enumerate(self.coarse.links):
            cost, held = self._edge(link, nodes)
            costs.append(cost)
            port = self.coarse.nodes[link.user].inputs[link.into]
            if self.coarse.nodes[link.user].kind != "leaf" and held.any():
                edge_usages.append(Usage(e, port.first, port.last + 1, held))
        joined = joined_sums(self.graph, self.coarse) if self.network.joins_added else {}
        carried = carried_sums(self.graph, self.coarse) if self.network.moves_carried else {}
        apart = joined.keys() | carried.keys()
        links = [(link.maker, link.user) for link in self.coarse.links]
        everything = (self.graph, self.coarse, nodes, self.sizes, self.network.machine.chip.kind)
        problem = Problem(
            node_costs=tuple(table.work if v in apart else table.cost for v, table in enumerate(nodes)),
            edges=(
                *links,
                *((first, second) for second, first in joined.items()),
                *((one.link.maker, one.link.user) for one in carried.values()),
            ),
            edge_costs=(
                *costs,
                *(self._joint(nodes[u], nodes[v]) for v, u in joined.items()),
                *(self._carried(one, nodes) for one in carried.values()),
            ),
            node_usages=tuple(node_usages(*everything, self.network.machine.cores)),
            edge_usages=(*edge_usages, *replaced_usages(*everything)),
            usage_limit=limit,
            horizon=len(self.graph.ops) + 1,
        )
        return Tables(problem, tuple(nodes), self.network, self.rounded, joined, carried)

    def _copy_feeds(self) -> dict[int, list[tuple[int, int]]]:
        feeds: dict[int, list[tuple[int, int]]] = {}
        for link in self.coarse.links:
            if self.coarse.nodes[link.maker].kind == "copy":
                feeds.setdefault(link.maker, []).append((link.user, link.into))
        return feeds

    def _signature(self, node: Node) -> tuple:
        touched = self._touched(node)

        def ports(several) -> tuple:
            return tuple(
                (p.dims, self.graph.values[p.value].itemsize, p.repeat, touched.get(p.value)) for p in several
            )

        primitive = self.op[node.ops[0]].primitive if node.ops else ""
        return (
            node.kind,
            primitive if node.kind == "op" or len(node.ops) == 1 else "",
            node.sizes,
            node.splittable,
            ports(node.inputs),
            ports(node.outputs),
            tuple((s.dims, s.reduced, s.repeat, self.graph.values[s.value].itemsize) for s in node.sums),
            tuple((b.dims, b.dim, b.before, b.after, b.repeat) for b in node.borders),
            (node.apart, node.filling),
            node.flops,
            node.repeat,
            of_state(node),
            self.pins.get(node.id),
        )

    def _touched(self, node: Node) -> dict[int, float]:
        return touched_parts((self.op[op] for op in node.ops), self.graph)

    def _table(self, node: Node, readers: list[PortSpecs]) -> NodeTable:
        graph, sizes = self.graph, self.sizes
        if node.kind == "copy":
            found = _of_specs(node, [spec for port in readers for spec in port.specs])
        elif node.id in self.pins:
            found = held_strategies(node, self.pins[node.id], sizes)
        else:
            found = strategies(node, sizes, of_state(node))
        if node.kind == "leaf":  # ties go to the first: where nothing else speaks, keep less on each device
            found = found[::-1]
        primitive = self.op[node.ops[0]].primitive if node.ops else ""
        touched = self._touched(node)
        work = work_seconds(node, primitive, graph, found, self.network.machine, sizes, touched)
        sums = tuple(
            tuple(finishes(node, primitive, graph, s, self.network)) if s.split else () for s in found
        )
        outputs = tuple(_port_specs([result_spec(p.dims, s) for s in found]) for p in node.outputs)
        return NodeTable(
            strategies=found,
            work=np.array(work),
            cost=np.array(work) + np.array([self.network.price(each) for each in sums]),
            sums=sums,
            inputs=tuple(_port_specs([spec_of(p.dims, s) for s in found]) for p in node.inputs),
            outputs=outputs,
        )

    def _joint(self, first: NodeTable, second: NodeTable) -> NDArray[np.float64]:
        key = (id(first), id(second))
        if key not in self.joint_tables:
            self.joint_tables[key] = joint_costs(first.sums, second.sums, self.network)
        return self.joint_tables[key]

    def _carried(self, one: Carried, nodes: list[NodeTable]) -> NDArray[np.float64]:
        link = one.link
        maker = nodes[link.maker]
        made, read = maker.outputs[link.out], nodes[link.user].inputs[link.into]
        key = (id(made), id(read), one.runs)
        if key not in self.carried_tables:
            moved = np.array(
                [
                    [is_moved(strategy, made.at(s), spec) for spec in read.specs]
                    for s, strategy in enumerate(maker.strategies)
                ]
            )
            self.carried_tables[key] = carried_costs(maker.sums, moved[:, read.index], one.runs, self.network)
        return self.carried_tables[key]

    def _edge(self, link: Link, nodes: list[NodeTable]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        port = self.coarse.nodes[link.user].inputs[link.into]
        made, read = nodes[link.maker].outputs[link.out], nodes[link.user].inputs[link.into]
        value = self.graph.values[port.value]
        whole, row = self.network.moved_bytes(value), row_of(value)
        if (link.user, link.into) in self.rounded:
            whole /= 2
        key = (id(made), id(read), whole, port.repeat, row)
        if key not in self.edge_tables:
            cost, held = self.pricer.tables(made.specs, read.specs, whole, port.repeat, row)
            grid = np.ix_(made.index, read.index)
            self.edge_tables[key] = (cost[grid], held[grid])
        return self.edge_tables[key]


def _of_specs(node: Node, specs: Sequence[Spec]) -> tuple[Strategy, ...]:
    """One strategy per different spec of the node's only value."""
    names = [dim[0] for dim in node.outputs[0].dims]
    return tuple(
        Strategy({name: axes for name, axes in zip(names, spec, strict=True) if axes}, {})
        for spec in dict.fromkeys(specs)
    )


def _port_specs(specs: list[Spec]) -> PortSpecs:
    order: Mapping[Spec, int] = {spec: i for i, spec in enumerate(dict.fromkeys(specs))}
    return PortSpecs(tuple(order), np.array([order[spec] for spec in specs], dtype=np.int64))
