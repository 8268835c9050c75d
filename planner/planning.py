"""From a solver's choice to a Plan: specs at sites, collectives, memory, words."""

import dataclasses
import functools
import hashlib
import importlib.metadata
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from planner.cost import backend
from planner.cost.carried import behind
from planner.cost.memory import stored_bytes
from planner.cost.roofline import MATMULS
from planner.cost.scratchpad import in_main_memory, main_peak, over_time
from planner.cost.tables import Tables
from planner.cost.traffic import Network, Transfer, finishes, moves, way_made
from planner.graph.coarsen import Coarse, Link
from planner.graph.graph import WITH_RULE, Graph, Path, Site
from planner.graph.labels import SAMPLE
from planner.graph.notation import show as show_rule
from planner.plans import Collective, LeafPlan
from planner.sharding.named import Sort
from planner.sharding.spec import Spec, pieces, replicated, ways
from planner.sharding.strategy import ALL_REDUCE, Strategy, result_spec, spec_of


class Decided:
    """A choice with what it means: the strategy of every node, the spec of every value."""

    def __init__(self, graph: Graph, coarse: Coarse, tables: Tables, choice: Sequence[int]) -> None:
        self.graph, self.coarse, self.tables, self.choice = graph, coarse, tables, tuple(choice)
        self.sizes = tables.network.sizes
        self.strategy: tuple[Strategy, ...] = tuple(
            table.strategies[c] for table, c in zip(tables.nodes, choice, strict=True)
        )

    @functools.cached_property
    def specs(self) -> dict[int, Spec]:
        """How every value with something to decide is kept, by value id."""
        found: dict[int, Spec] = {}
        for node, strategy in zip(self.coarse.nodes, self.strategy, strict=True):
            if node.kind != "copy":
                found.update({port.value: result_spec(port.dims, strategy) for port in node.outputs})
                found.update({value: spec_of(dims, strategy) for value, dims in node.inner})
        return found

    def spec(self, value: int) -> Spec:
        """How a value is kept; scalars and unused arguments are replicated."""
        if value < 0:
            return ()
        return self.specs.get(value, replicated(len(self.graph.values[value].shape)))

    def made(self, link: Link) -> Spec:
        """The spec that the maker of a link leaves."""
        return self.tables.nodes[link.maker].outputs[link.out].at(self.choice[link.maker])

    def read(self, link: Link) -> Spec:
        """The spec that the user of a link wants."""
        return self.tables.nodes[link.user].inputs[link.into].at(self.choice[link.user])


def sites(decided: Decided) -> dict[Site, tuple[Spec, ...]]:
    """Where to constrain what: every value where it is made, and every use that wants another spec."""
    found: dict[Site, tuple[Spec, ...]] = {}
    values = decided.graph.values
    for value, spec in decided.specs.items():
        found.update((site, (spec,)) for site in values[value].made)
    primitive = {op.id: op.primitive for op in decided.graph.ops}
    for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True):
        if any(place != ALL_REDUCE for place in strategy.finish.values()):
            name, value = primitive[node.ops[0]], node.outputs[0].value
            way = way_made(node, name, decided.graph, strategy, decided.tables.network)
            found.update((site, (*way, decided.spec(value))) for site in values[value].made)
    nodes, network = decided.coarse.nodes, decided.tables.network
    into_copy = {link.user: link for link in decided.coarse.links if nodes[link.user].kind == "copy"}
    for link in decided.coarse.links:
        if link.user in into_copy:
            continue
        made, read, way = decided.made(link), decided.read(link), ()
        if link.maker in into_copy:
            copied, made = made, decided.made(into_copy[link.maker])
            # A slice of what is kept is taken from there, and need not wait for the copy.
            if any(network.reshard(copied, read)) or any(network.reshard(made, read)):
                way, made = _way(made, copied, network), copied
        way += _way(made, read, network)
        if not way and _has_own_rule(decided, link, primitive):
            way = (read,)  # what its parts look like is said at its uses
        if way:
            found.update((site, way) for site in nodes[link.user].inputs[link.into].uses)
    return found | dict(_other_uses(decided, found))


def _has_own_rule(decided: Decided, link: Link, primitive: Mapping[int, str]) -> bool:
    ops = decided.coarse.nodes[link.user].ops
    return bool(ops) and primitive[ops[0]] == WITH_RULE


def _other_uses(
    decided: Decided, found: Mapping[Site, tuple[Spec, ...]]
) -> Iterator[tuple[Site, tuple[Spec, ...]]]:
    """The uses, as it is kept, of what a nested program is given and reads in another spec too: the only
    constraint of an argument would be taken for the spec of the argument itself."""
    uses: dict[tuple[int, Path], list[Site]] = defaultdict(list)
    for op in decided.graph.ops:
        for value, several in zip(op.operands, op.uses, strict=True):
            if value is not None and value in decided.specs:
                for site in several:
                    uses[value, site.path].append(site)
    for (value, path), several in uses.items():
        made_here = any(site.path == path for site in decided.graph.values[value].made)
        if not made_here and any(site in found for site in several):
            yield from ((site, (decided.spec(value),)) for site in several if site not in found)


def _way(source: Spec, target: Spec, network: Network) -> tuple[Spec, ...]:
    """The specs a value passes through, the first one left out."""
    if source == target:
        return ()
    steps = [step.spec for step in network.reshard(source, target)]
    return tuple(dict.fromkeys([*steps, target]))


def transfers(decided: Decided) -> Iterator[Transfer]:
    """Every collective of the step, in no order."""
    tables = decided.tables
    yield from _zeros_once(_finishes(decided), decided)
    for link in decided.coarse.links:
        port = decided.coarse.nodes[link.user].inputs[link.into]
        value, rounded = decided.graph.values[port.value], (link.user, link.into) in tables.rounded
        yield from moves(port, value, rounded, decided.made(link), decided.read(link), tables.network)


def _finishes(decided: Decided) -> Iterator[Transfer]:
    """The collectives inside the nodes."""
    tables = decided.tables
    primitive = {op.id: op.primitive for op in decided.graph.ops}
    for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True):
        if tables.is_spared(node.id, decided.choice):
            continue
        name = primitive[node.ops[0]] if node.ops else ""
        found = finishes(node, name, decided.graph, strategy, tables.network)
        is_behind = tables.is_behind(node.id, decided.choice)
        yield from behind(found, tables.carried[node.id].runs) if is_behind else found


def _zeros_once(found: Iterable[Transfer], decided: Decided) -> Iterator[Transfer]:
    """The same collectives, but for the zeros that loops of permutes begin with where they are passed already
    for a sum of the same shape."""
    region = {value: op.region for op in decided.graph.ops for value in op.results}
    seen = set[Hashable]()
    for one in found:
        value = decided.graph.values[one.value]
        key = region.get(one.value), value.shape, value.dtype, one.bytes, one.axes
        if one.ring != 1.0 and key in seen:
            one = dataclasses.replace(
                one, ring=backend.without_zeros(one.ring, ways(one.axes, decided.sizes))
            )
        elif one.ring != 1.0:
            seen.add(key)
        yield one


def collectives(decided: Decided) -> tuple[Collective, ...]:
    """The planned collectives with their prices, the most expensive first."""
    network = decided.tables.network
    source = {value: op.source for op in decided.graph.ops for value in op.results}
    found = [
        Collective(
            kind=t.kind,
            axes=t.axes,
            bytes=t.bytes,
            wire_bytes=network.wire_bytes(t),
            seconds=network.run_seconds(t),
            times=t.times,
            value=decided.graph.values[t.value].name,
            source=source.get(t.value, ""),
        )
        for t in transfers(decided)
    ]
    return tuple(sorted(found, key=lambda c: -c.seconds * c.times))


def wire_bytes(decided: Decided) -> float:
    """Bytes each device sends in a step."""
    network = decided.tables.network
    return sum(t.times * network.wire_bytes(t) for t in transfers(decided))


def communication_seconds(decided: Decided) -> float:
    """Seconds of all collectives of a step, one after the other."""
    return decided.tables.network.price(transfers(decided))


def matmul_flops(decided: Decided) -> float:
    """FLOPs of the matmuls and convolutions of a step on one device; what is not split, all devices do."""
    primitive = {op.id: op.primitive for op in decided.graph.ops}
    return sum(
        node.flops * node.repeat / pieces(tuple(strategy.split.values()), decided.sizes)
        for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True)
        if node.ops and primitive[node.ops[0]] in MATMULS
    )


_HELD_AS = {"parameter": "parameters", "moment": "optimizer state", "data": "batch"}


def peak_bytes(decided: Decided) -> float:
    """The most that is held in a device's main memory at any time."""
    return main_peak(decided.tables.problem, decided.choice, decided.tables.network.machine.scratchpad_bytes)


def memory_at_peak(decided: Decided, sorts: Mapping[int, Sort]) -> dict[str, float]:
    """Bytes per device by kind, at the time when most is held."""
    problem = decided.tables.problem
    main = in_main_memory(problem, decided.choice, decided.tables.network.machine.scratchpad_bytes)
    peak = int(over_time(main, problem.horizon).argmax())
    nodes = set(map(id, problem.node_usages))
    held: dict[str, float] = defaultdict(float)
    for one in main:
        if one.usage.first <= peak < one.usage.last:
            copied = id(one.usage) not in nodes
            held["resharded copies" if copied else _kind(decided, one.usage.of, sorts)] += one.bytes
    return {kind: count for kind, count in sorted(held.items()) if count}


def _kind(decided: Decided, of: int, sorts: Mapping[int, Sort]) -> str:
    """What a node's usage is called."""
    node = decided.coarse.nodes[of]
    if sorts[of] in _HELD_AS:
        return _HELD_AS[sorts[of]]
    ahead = sorts[of] == "activation" or _from_examples(node.labels, node)
    return "activations" if ahead else "gradients"


_MOST_ALIVE = 64


def alive_at_peak(decided: Decided) -> tuple[LeafPlan, ...]:
    """What the step makes and holds when most is held, the largest first, each by one value of its node;
    arguments, which are always held, are left out."""
    problem, nodes, values = decided.tables.problem, decided.coarse.nodes, decided.graph.values
    main = in_main_memory(problem, decided.choice, decided.tables.network.machine.scratchpad_bytes)
    peak = int(over_time(main, problem.horizon).argmax())
    edges = set(map(id, problem.edge_usages))
    held: dict[int, float] = defaultdict(float)
    found: list[tuple[str, int, Spec, float]] = []
    for one in main:
        of, now = one.usage.of, one.usage.first <= peak < one.usage.last
        if now and id(one.usage) not in edges:
            held[of] += one.bytes
        elif now and of < len(decided.coarse.links):
            link = decided.coarse.links[of]
            value = nodes[link.user].inputs[link.into].value
            found.append((f"a copy of {values[value].name}", value, decided.read(link), one.bytes))
    for v, size in held.items():
        if nodes[v].kind not in ("leaf", "const"):
            alive = [port for port in nodes[v].outputs if port.first <= peak <= port.last]
            value = (alive or nodes[v].outputs)[0].value
            found.append((values[value].name, value, decided.spec(value), size))
    largest = sorted((row for row in found if row[3]), key=lambda row: -row[3])[:_MOST_ALIVE]
    return tuple(
        LeafPlan(name, values[value].shape, values[value].dtype, spec, size)
        for name, value, spec, size in largest
    )


def _from_examples(labels: Sequence[tuple[str, str]], node) -> bool:
    """Whether what a heavy op keeps has a dim along the examples."""
    of = dict(labels)
    return any(of.get(dim[0]) == SAMPLE for port in node.outputs for dim in port.dims if dim)


def leaf_plans(decided: Decided) -> tuple[tuple[LeafPlan, ...], tuple[LeafPlan, ...]]:
    """Where the arguments and results live; a result that replaces an argument lives as that argument
    does."""
    graph = decided.graph

    def planned(path: str, value: int, spec: Spec) -> LeafPlan:
        if value < 0:
            return LeafPlan(path, (), "", (), 0.0)
        v = graph.values[value]
        kind = decided.tables.network.machine.chip.kind
        return LeafPlan(path, v.shape, v.dtype, spec, stored_bytes(v, spec, decided.sizes, kind))

    arguments = tuple(planned(a.path, a.value, decided.spec(a.value)) for a in graph.arguments)
    results = tuple(
        planned(r.path, r.value, decided.spec(r.value) if r.partner is None else arguments[r.partner].spec)
        for r in graph.results
    )
    return arguments, results


def fingerprint(graph: Graph) -> str:
    """Identifies a step: equal for equal programs on equal shapes, whatever the values."""
    digest = hashlib.sha256()
    for leaf in (*graph.arguments, *graph.results):
        shape = graph.values[leaf.value].shape if leaf.value >= 0 else ()
        digest.update(f"{leaf.path}{shape}".encode())
    for op in graph.ops:
        digest.update(f"{op.primitive}{op.operands}{op.results}{show_rule(op.rule)}{op.repeat}".encode())
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """What the plan was made with."""
    return {name: importlib.metadata.version(name) for name in ("jax", "numpy")}
