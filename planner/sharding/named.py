"""The named schemes, as restrictions of the one space of strategies.

A scheme gives each mesh axis a *role*: a set of moves it may make in each sort of node. A move is what an
axis does in a strategy: nothing, split a factor with some label, or split a reduced factor and finish its
sums in some way. The solver is then free inside the restriction, so a scheme is priced at its best.

    role      state       batch, activations     heavy ops                                sums end in
    data      whole       sample                 sample                                   all-reduce
    zero1     moments     sample                 sample                                   all-reduce,
    reduce-scatter fsdp      split       sample                 sample
    all-reduce, reduce-scatter
    tensor    any         parameter, none        parameter, none                          all-reduce
    sequence  any         parameter, attribute   parameter, none                          all-reduce, scatter
    onto attribute feature   split       parameter              parameter
    scatter onto parameter
    cube      split       sample, parameter      parameter; sample where no weight is     scatter

The two cube axes of 3-D parallelism lie on different dims of every activation, and swap them from one linear
to the next.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from planner.graph.coarsen import Node
from planner.graph.labels import ATTRIBUTE, NONE, PARAMETER, SAMPLE
from planner.sharding.strategy import ALL_REDUCE, Strategy

Sort = Literal["parameter", "moment", "data", "state", "update", "activation", "op", "free"]


@dataclasses.dataclass(frozen=True)
class Move:
    """What one axis does in one strategy. label: of the factor it splits, None if it splits nothing; finish:
    None, or 'all_reduce', or the label of the dim that partial sums are scattered onto; factor: the one it
    splits."""

    label: str | None
    finish: str | None = None
    factor: str | None = None


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A named restriction. roles: role of each axis of a mesh with that many axes, None if it needs other
    axes."""

    name: str
    words: str
    roles: Callable[[int], tuple[str, ...] | None]


def _same(role: str) -> Callable[[int], tuple[str, ...]]:
    return lambda count: (role,) * count


def _last(first: str, last: str) -> Callable[[int], tuple[str, ...] | None]:
    return lambda count: (first,) * (count - 1) + (last,) if count > 1 else None


SCHEMES: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("data", "data parallel", _same("data")),
        Scheme("zero1", "data parallel, optimizer state split (ZeRO-1)", _same("zero1")),
        Scheme("fsdp", "fully sharded data parallel (ZeRO-3)", _same("fsdp")),
        Scheme("tensor_1d", "tensor parallel (Megatron)", _same("tensor")),
        Scheme("tensor_1d_sp", "tensor parallel with sequence parallel (Megatron)", _same("sequence")),
        Scheme("fsdp_tensor", "fsdp and tensor parallel", _last("fsdp", "sequence")),
        Scheme("tensor_2d", "2-D tensor parallel", _last("fsdp", "feature")),
        Scheme(
            "tensor_3d",
            "3-D tensor parallel",
            lambda count: ("fsdp", "cube", "cube") if count == 3 else None,
        ),
    )
}

_SAMPLES = {"data", "zero1", "fsdp"}
_MUST_SPLIT_STATE = {"fsdp", "feature", "cube"}
_MUST_SPLIT_ACTIVATIONS = {"data", "zero1", "fsdp", "feature", "cube"}


def allowed(
    node: Node, sort: Sort, strategies: Sequence[Strategy], roles: Mapping[str, str]
) -> tuple[int, ...]:
    """Indices of the strategies a scheme leaves to a node. roles: of every axis of the mesh."""
    if sort == "free":
        return tuple(range(len(strategies)))
    labels = dict(node.labels)
    moves = [{axis: _move(node, labels, strategy, axis) for axis in roles} for strategy in strategies]
    fitting = [
        i
        for i, made in enumerate(moves)
        if all(_may(role, sort, made[axis]) for axis, role in roles.items())
        and _together(made, roles)
        and _cube(node, sort, made, roles)
    ]
    must = {axis for axis, role in roles.items() if _must(role, sort)}
    idle = {i: sum(moves[i][axis].label is None for axis in must) for i in fitting}
    least = min(idle.values(), default=0)
    return tuple(i for i in fitting if idle[i] == least)


def _move(node: Node, labels: Mapping[str, str], strategy: Strategy, axis: str) -> Move:
    for factor, axes in strategy.split.items():
        if axis in axes:
            place = strategy.finish.get(axis)
            if place is None:
                return Move(labels[factor], None, factor)
            if place == ALL_REDUCE:
                return Move(labels[factor], "all_reduce", factor)
            return Move(labels[factor], labels[node.outputs[0].dims[place][0]], factor)
    return Move(None)


def _together(made: Mapping[str, Move], roles: Mapping[str, str]) -> bool:
    """Axes that share a one-dimensional role act as one axis."""
    for role in ("tensor", "sequence"):
        several = {made[axis] for axis, its in roles.items() if its == role}
        if len(several) > 1:
            return False
    return True


def _cube(node: Node, sort: Sort, made: Mapping[str, Move], roles: Mapping[str, str]) -> bool:
    """Whether the cube axes are where 3-D parallelism wants them, given what the node has to split."""
    labels = [made[axis].label for axis, role in roles.items() if role == "cube"]
    if not labels or sort not in ("activation", "data", "op"):
        return True
    of = dict(node.labels)
    if sort != "op":
        both = {SAMPLE, PARAMETER} <= {of[f] for f in node.splittable}
        return not both or labels[0] != labels[1] or labels == [None, None]
    weighted = any(all(of[f] != SAMPLE for dim in p.dims for f in dim) for p in node.inputs)
    gradient = bool(node.sums) and any(of[f] == SAMPLE for f in node.sums[0].reduced)
    if not node.flops or not (weighted or gradient):
        return True
    pair = [made[axis] for axis, role in roles.items() if role == "cube"]
    if None in labels:
        return labels == [None, None]
    rows = sum(move.finish is not None for move in pair)
    # One axis on the rows of the weight, the other on its columns; both are columns of a gradient's two
    # factors.
    return SAMPLE not in labels and rows == (0 if gradient else 1) and pair[0].factor != pair[1].factor


def _must(role: str, sort: Sort) -> bool:
    """Whether the axis has to split the node if it can."""
    if sort in ("parameter", "moment", "update"):
        return role in _MUST_SPLIT_STATE or (role == "zero1" and sort != "parameter")
    return role in _MUST_SPLIT_ACTIVATIONS and sort in ("data", "activation", "op")


def _may(role: str, sort: Sort, move: Move) -> bool:
    if move.label is None:
        return True
    if sort in ("parameter", "moment", "update", "state"):
        whole = role == "data" or (role == "zero1" and sort in ("parameter", "state"))
        return not whole
    if role in _SAMPLES:
        scatters = move.finish not in (None, "all_reduce")
        return move.label == SAMPLE and not (role == "data" and scatters)
    if role == "tensor":
        return move.label in (PARAMETER, NONE) and move.finish in (None, "all_reduce")
    if role == "sequence":
        if move.label == ATTRIBUTE:
            return sort in ("activation", "data") and move.finish is None
        return move.label in (PARAMETER, NONE) and move.finish in (None, "all_reduce", ATTRIBUTE)
    if role == "feature":
        return move.label in (PARAMETER, NONE) and move.finish in (None, "all_reduce", PARAMETER, NONE)
    return move.label in (SAMPLE, PARAMETER, NONE) and move.finish != "all_reduce"


def sorts(nodes: Iterable[Node], users: Mapping[int, Sequence[Node]]) -> dict[int, Sort]:
    """What sort of thing each node is, for the schemes. users: the nodes that read each node."""
    nodes = list(nodes)
    updates = {maker for maker, readers in users.items() if any(r.kind == "leaf" for r in readers)}
    found: dict[int, Sort] = {}
    for node in nodes:
        seen = any(label == SAMPLE for _, label in node.labels)
        if node.kind == "leaf":
            others = {r.id for r in users.get(node.id, ())}
            found[node.id] = "data" if not node.inputs else "moment" if len(others) == 1 else "parameter"
        elif node.kind in ("copy", "const"):
            found[node.id] = "free"
        elif node.kind == "op":
            found[node.id] = "op" if seen else "state"
        elif seen:
            found[node.id] = "activation"
        else:
            found[node.id] = "update" if node.id in updates else "state"
    return found
