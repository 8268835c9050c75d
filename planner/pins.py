"""Pins: what the user knows already, as the strategies it leaves to nodes.

A pattern is looked up among the paths of the arguments, then of the results, then among the values inside
the step: by checkpoint name, by the line that makes them (`gpt.py:89`, or `gpt.py:89 backward` for what the
backward pass makes of that line), or by primitive and line as the report writes them. The first of these
that has a match counts. A result that replaces an argument lives as that argument does, so a pin on either
holds for both.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshes.mesh import LogicalMesh
from planner.cost.tables import Pins
from planner.errors import PinError
from planner.graph.coarsen import Coarse, Node
from planner.graph.graph import Graph
from planner.graph.rule import Dims
from planner.plans import Plan
from planner.sharding.pin import Held, Pin, held_strategies, parse, show
from planner.sharding.spec import Spec, ways
from planner.sharding.spec import show as show_spec
from planner.sharding.strategy import result_spec

_FORMS = "give a PartitionSpec of axis names, such as P('x', None), or text: 'P(x, ?)', 'x@0' or '!x'."
_NO_VALUE = -1  # of what concerns the factors of an op, and no value of its own
_SHOWN = 4  # of the specs that a value may have


def pin_from(given: Any, rank: int, name: str) -> Pin:
    """A pin from a PartitionSpec, a tuple of axes per dim, or text; dims left out at the end are whole.

    Raises PinError if it is none of these, or does not fit a value of so many dims.
    """
    pin = _read(given, name)
    if pin.dims is not None:
        if len(pin.dims) > rank:
            raise PinError(
                f"The pin {name!r} gives {len(pin.dims)} dims, but the value has {rank}. "
                f"Give at most {rank} entries."
            )
        pin = Pin(pin.dims + ((),) * (rank - len(pin.dims)), pin.on, pin.off)
    beyond = [dim for _, dim in pin.on if dim >= rank]
    if beyond:
        raise PinError(
            f"The pin {name!r} = {show(pin)} names dim {beyond[0]}, but the value has {rank} dims. "
            f"Count the dims from 0."
        )
    if len(set(pin.axes)) < len(pin.axes):
        raise PinError(f"The pin {name!r} = {show(pin)} uses an axis twice. Give each axis to one dim.")
    return pin


def _read(given: Any, name: str) -> Pin:
    if isinstance(given, Pin):
        return given
    if isinstance(given, str):
        try:
            return parse(given)
        except ValueError as error:
            raise PinError(f"The pin {name!r} is {given!r}; {_FORMS}") from error
    if not isinstance(given, Iterable) or not all(_is_dim(dim) for dim in given):
        raise PinError(f"The pin {name!r} is {given!r}; {_FORMS}")
    return Pin(tuple((axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in given))


def _is_dim(given: Any) -> bool:
    """Whether this is one entry of a PartitionSpec: nothing, an axis, or several."""
    several = isinstance(given, (tuple, list)) and all(isinstance(axis, str) for axis in given)
    return given is None or isinstance(given, str) or several


def pinned_nodes(graph: Graph, coarse: Coarse, pins: Mapping[str, Any]) -> Pins:
    """What is held of each node that a pin concerns; where several pins name a value, the last one holds.

    Raises PinError for a pin that names nothing, or that splits a single element.
    """
    if not isinstance(pins, Mapping):
        raise PinError(
            f"pins is {pins!r}; give a dict of paths and PartitionSpecs, like {{'batch.*': P('x')}}."
        )
    held: dict[int, dict[int, Held]] = {}
    makers = dict(_makers(coarse)) if pins else {}
    for pattern, given in pins.items():
        for value in _named(graph, makers, pattern, given):
            pin = pin_from(given, len(graph.values[value].shape), pattern)
            if value in makers:
                node, dims = makers[value]
                held.setdefault(node, {})[value] = Held(dims, pin, value, pattern)
            elif any(pin.required(len(graph.values[value].shape))):
                raise PinError(
                    f"The pin {pattern!r} = {show(pin)} splits {graph.values[value].name}, which is a single "
                    "element. Leave it out of the pin."
                )
    found = {node: tuple(several.values()) for node, several in held.items()}
    for node, tied in _regions(graph, coarse):
        found[node] = (*found.get(node, ()), tied)
    return found


def _regions(graph: Graph, coarse: Coarse) -> Iterator[tuple[int, Held]]:
    """What code for one device of a mesh asks of its node: that its axes split their factors."""
    ops = {op.id: op for op in graph.ops if op.inside}
    for node in coarse.nodes if ops else ():
        op = ops.get(node.ops[0]) if len(node.ops) == 1 else None
        if op is not None and op.inside is not None and op.inside.tied:
            ours: dict[str, str] = {}
            for ports, values, rule in (
                (node.inputs, op.operands, op.rule.operands),
                (node.outputs, op.results, op.rule.results),
            ):
                of = {port.value: port.dims for port in ports}
                for value, dims in zip(values, rule, strict=True):
                    named = of.get(value, ()) if value is not None else ()
                    ours.update((a[0], b[0]) for a, b in zip(dims, named, strict=False) if a and b)
            tied = [(ours[factor], axes) for factor, axes in op.inside.tied if factor in ours]
            dims = tuple((factor,) for factor, _ in tied)
            spec = tuple(axes for _, axes in tied)
            yield node.id, Held(dims, Pin(spec), _NO_VALUE, f"the shard_map at {op.source}")


def specs_held(plan: Plan, graph: Graph, coarse: Coarse) -> Pins:
    """The specs that another plan has for the arguments of the same path and rank, as pins."""
    specs = plan.argument_specs
    makers = dict(_makers(coarse))
    held = {}
    for leaf in graph.arguments:
        spec = specs.get(leaf.path)
        if spec is not None and leaf.value in makers and len(spec) == len(graph.values[leaf.value].shape):
            node, dims = makers[leaf.value]
            held[node] = (Held(dims, Pin(spec), leaf.value, leaf.path),)
    return held


def _makers(coarse: Coarse) -> Iterator[tuple[int, tuple[int, Dims]]]:
    """Of every value with something to decide: the node that makes it, and its dims there."""
    for node in coarse.nodes:
        if node.kind != "copy":
            yield from ((port.value, (node.id, port.dims)) for port in node.outputs)
            yield from ((value, (node.id, dims)) for value, dims in node.inner)


def _named(graph: Graph, makers: Mapping[int, Any], pattern: str, given: Any) -> list[int]:
    """The values that a pattern names."""

    def matches(*names: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for name in names if name)

    arguments = [leaf.value for leaf in graph.arguments if matches(leaf.path)]
    if arguments:
        return arguments
    results = [leaf for leaf in graph.results if matches(leaf.path)]
    if results:
        replaced = (graph.arguments[leaf.partner] if leaf.partner is not None else leaf for leaf in results)
        return [leaf.value for leaf in replaced if leaf.value >= 0]
    inside = [v for v in graph.values if v.id in makers and matches(v.mark, v.line, v.name)]
    fitting = [v.id for v in inside if len(v.shape) == _rank(given, len(v.shape))]
    if fitting:
        return fitting
    if inside:
        ranks = " or ".join(str(rank) for rank in sorted({len(v.shape) for v in inside}))
        raise PinError(
            f"The pin {pattern!r} has {_rank(given, 0)} dims, but what it names inside the step has {ranks}. "
            "Give an entry for every dim."
        )
    raise PinError(
        f"The pin {pattern!r} matches no argument. Paths look like {_examples(graph)}; * stands for any text."
    )


def _rank(given: Any, otherwise: int) -> int:
    """How many dims a value inside the step must have for this pin: one line makes arrays of several
    ranks."""
    pin = _read(given, "")
    return otherwise if pin.dims is None else len(pin.dims)


def _examples(graph: Graph) -> str:
    paths = [repr(leaf.path) for leaf in graph.arguments]
    return " or ".join((paths[0], paths[-1])) if paths else "nothing: the step has no arguments"


def usable_meshes(
    meshes: Sequence[LogicalMesh], graph: Graph, coarse: Coarse, pins: Pins
) -> tuple[LogicalMesh, ...]:
    """The meshes on which all pins can hold.

    Raises PinError if there is none, saying why not on the mesh with the most axes.
    """
    problems = {mesh: _pin_problem(mesh, graph, coarse, pins) for mesh in meshes}
    usable = tuple(mesh for mesh, problem in problems.items() if not problem)
    if usable:
        return usable
    raise PinError(problems[max(problems, key=lambda mesh: len(mesh.axes))])


def _pin_problem(mesh: LogicalMesh, graph: Graph, coarse: Coarse, pins: Pins) -> str:
    """Why a pin cannot hold on a mesh, '' if all can."""
    for op in graph.ops:
        if op.inside and any(mesh.sizes.get(axis) != size for axis, size in op.inside.mesh):
            sizes = dict(op.inside.mesh)
            return (
                f"The step has a shard_map over {', '.join(f'{a}={n}' for a, n in sizes.items())} at "
                f"{op.source or 'an unknown line'}, but the mesh is {mesh}. Fix the mesh that it is written "
                f"for: mesh={sizes}."
            )
    for node, several in pins.items():
        for held in several:
            said = "" if held.value == _NO_VALUE else _misfit(mesh, graph, held)
            if said:
                return said
        if not held_strategies(coarse.nodes[node], several, mesh.sizes):
            return _impossible(mesh, graph, coarse.nodes[node], several)
    return ""


def _misfit(mesh: LogicalMesh, graph: Graph, held: Held) -> str:
    """Why the value alone, whatever makes it, cannot be kept as the pin says on a mesh."""
    pin, value = held.pin, graph.values[held.value]
    unknown = [axis for axis in pin.axes if axis not in mesh.sizes]
    if unknown:
        return (
            f"The pin on {value.name} names the axis {unknown[0]!r}, but the mesh has "
            f"{', '.join(mesh.axes)}. Use these names, or fix the mesh (mesh=)."
        )
    for dim, (extent, axes) in enumerate(zip(value.shape, pin.required(len(value.shape)), strict=True)):
        count = ways(axes, mesh.sizes)
        if extent % count:
            return (
                f"The pin {show(pin)} does not divide {value.name}: dim {dim} has {extent} elements, which "
                f"{count} pieces cannot share evenly. "
                f"Pin another dim, or choose a size that {count} divides."
            )
    return ""


def _impossible(mesh: LogicalMesh, graph: Graph, node: Node, several: Sequence[Held]) -> str:
    """What to say where a node has no strategy under which its pins hold."""
    for held in several:
        if not held_strategies(node, [held], mesh.sizes):
            free = Held(held.dims, Pin(), held.value, held.pattern)
            every = (result_spec(held.dims, s) for s in held_strategies(node, [free], mesh.sizes))
            some: list[Spec] = list(dict.fromkeys(every))
            shown = ", ".join(show_spec(spec) for spec in some[:_SHOWN])
            more = f" and {len(some) - _SHOWN} others" if len(some) > _SHOWN else ""
            return (
                f"The pin {show(held.pin)} cannot hold on {graph.values[held.value].name}, which the op that "
                f"makes it can leave as {shown}{more}. Pin it to one of these, or pin what it is used for."
            )
    first, second = several[:2]
    return (
        f"The pins {first.pattern!r} and {second.pattern!r} cannot hold together: what they name is made by "
        "one fused op, which is split in one way. Leave one of them out."
    )
