"""The named schemes, as restrictions of the one space of strategies.

A scheme gives each mesh axis a *role*: a set of moves it may make in each sort of node. A move is what an
axis does in a strategy: nothing, split a factor with some label, or split a reduced factor and finish its
sums in some way. The solver is then free inside the restriction, so a scheme is priced at its best. The
roles are the rows of ROLES.

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

_FEATURES = frozenset({PARAMETER, NONE})
_EXAMPLES = frozenset({SAMPLE})
_SUM = frozenset({"all_reduce"})
_SCATTERED = frozenset({SAMPLE, ATTRIBUTE, PARAMETER, NONE})


@dataclasses.dataclass(frozen=True)
class Role:
    """What an axis of this role may do. state: which part of the state it may split, or ('split') has to
    split. activations, ops: labels it may split in batches and activations, and in heavy ops. finishes: how
    its partial sums may end. must: whether it has to split batches, activations and ops where it can."""

    state: Literal["whole", "moments", "any", "split"]
    activations: frozenset[str]
    ops: frozenset[str]
    finishes: frozenset[str]
    must: bool


ROLES: Mapping[str, Role] = {
    "cube": Role("split", _EXAMPLES | _FEATURES, _EXAMPLES | _FEATURES, _SCATTERED, must=True),
    "data": Role("whole", _EXAMPLES, _EXAMPLES, _SUM, must=True),
    "feature": Role("split", _FEATURES, _FEATURES, _SUM | _FEATURES, must=True),
    "fsdp": Role("split", _EXAMPLES, _EXAMPLES, _SUM | _SCATTERED, must=True),
    "sequence": Role("any", _FEATURES | {ATTRIBUTE}, _FEATURES, _SUM | {ATTRIBUTE}, must=False),
    "tensor": Role("any", _FEATURES, _FEATURES, _SUM, must=False),
    "zero1": Role("moments", _EXAMPLES, _EXAMPLES, _SUM | _SCATTERED, must=True),
}


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
        if all(_may(ROLES[role], sort, made[axis]) for axis, role in roles.items())
        and _together(made, roles)
        and _cube(node, sort, made, roles)
    ]
    must = {axis for axis, role in roles.items() if _must(ROLES[role], sort)}
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


def _must(role: Role, sort: Sort) -> bool:
    """Whether the axis has to split the node if it can."""
    if sort in ("parameter", "moment", "update"):
        return role.state == "split" or (role.state == "moments" and sort != "parameter")
    return role.must and sort in ("data", "activation", "op")


def _may(role: Role, sort: Sort, move: Move) -> bool:
    """Whether an axis may make this move in a node of this sort."""
    if move.label is None:
        return True
    if sort in ("parameter", "moment", "update", "state"):
        return role.state in ("any", "split") or (role.state == "moments" and sort in ("moment", "update"))
    labels = role.ops if sort == "op" else role.activations
    return move.label in labels and (move.finish is None or move.finish in role.finishes)


def sorts(nodes: Iterable[Node], users: Mapping[int, Sequence[Node]]) -> dict[int, Sort]:
    """What sort of thing each node is, for the schemes. users: the nodes that read each node."""
    nodes = list(nodes)

    def readers(node: int) -> Iterable[Node]:
        for reader in users.get(node, ()):
            yield from readers(reader.id) if reader.kind == "copy" else (reader,)

    updates = {maker for maker, readers in users.items() if any(r.kind == "leaf" for r in readers)}
    found: dict[int, Sort] = {}
    for node in nodes:
        seen = any(label == SAMPLE for _, label in node.labels)
        if node.kind == "leaf":
            others = {reader.id for reader in readers(node.id)}
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
