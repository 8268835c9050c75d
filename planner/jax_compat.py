"""The one file that knows how jax versions differ (0.10 to 0.12), and how a step becomes a jaxpr.

Jaxprs: from 0.12 on a closed jaxpr *is* a jaxpr that carries its constants, so nothing here asks for a type;
`open_jaxpr` gives the object with `eqns`, `invars` and `outvars` in every version.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from planner.errors import InputError, TraceError
from planner.sharding.spec import Spec

# Parameters that hold a jaxpr of the user's program. Everything else (scatter combiners, sort comparators,
# kernels, shard_map bodies) is no place for a constraint, and no part of the graph.
BODIES: dict[str, tuple[str, ...]] = {
    "checkpoint": ("jaxpr",),
    "closed_call": ("call_jaxpr",),
    "cond": ("branches",),
    "core_call": ("call_jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_linear_solve": ("jaxprs",),
    "custom_vjp_call": ("call_jaxpr",),
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "remat": ("jaxpr",),
    "remat2": ("jaxpr",),
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
}


def open_jaxpr(jaxpr: Any) -> Any:
    """The object with eqns, invars, constvars and outvars, of a closed or an open jaxpr."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def close_jaxpr(inner: Any, like: Any) -> Any:
    """`inner`, an open jaxpr, closed over the constants of `like` if `like` is closed."""
    if like is open_jaxpr(like):
        return inner
    return jex.ClosedJaxpr(inner, like.consts)


def sub_jaxprs(eqn: Any) -> list[tuple[str, int | None, Any]]:
    """The bodies of an equation: (parameter, index in it or None, jaxpr), closed or open as they stand."""
    found: list[tuple[str, int | None, Any]] = []
    for name in BODIES.get(eqn.primitive.name, ()):
        held = eqn.params.get(name)
        if isinstance(held, (tuple, list)):
            found += [(name, index, jaxpr) for index, jaxpr in enumerate(held) if jaxpr is not None]
        elif held is not None:
            found.append((name, None, held))
    return found


def scan_counts(eqn: Any) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many are carried; the rest is scanned.

    Told by rank, because the parameters that say so were renamed in 0.12: a scanned operand or a stacked
    result has one dim more outside the body than inside.
    """
    body = open_jaxpr(eqn.params["jaxpr"])
    into = zip(eqn.invars, body.invars, strict=True)
    back = zip(eqn.outvars, body.outvars, strict=True)
    scanned = sum(len(outer.aval.shape) != len(inner.aval.shape) for outer, inner in into)
    carried = sum(len(outer.aval.shape) == len(inner.aval.shape) for outer, inner in back)
    return len(eqn.invars) - scanned - carried, carried


def scan_length(eqn: Any) -> int:
    """How often the bodies of an equation run each time that it does."""
    return eqn.params["length"] if eqn.primitive.name == "scan" else 1


def with_bodies(eqn: Any, bodies: Mapping[tuple[str, int | None], Any]) -> dict[str, Any]:
    """The parameters of `eqn` with other bodies, keyed as `sub_jaxprs` names them."""
    params = dict(eqn.params)
    for (name, index), body in bodies.items():
        if index is None:
            params[name] = body
        else:
            held = params[name]
            several = [*held[:index], body, *held[index + 1 :]]
            params[name] = getattr(held, "_make", tuple)(several)
    return params


def unplaced(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a nested jit without the user's shardings, which speak of the user's mesh."""
    sides = {side: params.get(side, ()) for side in ("in_shardings", "out_shardings")}
    if not any(isinstance(given, Sharding) for several in sides.values() for given in several):
        return params
    (plain,) = open_jaxpr(jax.make_jaxpr(jax.jit(lambda x: x + x))(0)).eqns
    (nothing,) = plain.params["in_shardings"]
    bare = {side: (nothing,) * len(several) for side, several in sides.items()}
    return {**params, **bare, "ctx_mesh": plain.params["ctx_mesh"]}


def changes_nothing(eqn: Any) -> bool:
    """Whether an equation only hands its operand on, as far as a plan is concerned: a constraint of the
    user's, which the plan replaces; a reversal of dims of length 1, as the gradient of a convolution has of
    a 1 x 1 kernel (XLA drops it, and gathers once what is read before and after it)."""
    if eqn.primitive.name == "rev":
        return all(eqn.invars[0].aval.shape[dim] == 1 for dim in eqn.params["dimensions"])
    return eqn.primitive.name == "sharding_constraint"


def body_in_place(eqn: Any) -> tuple[str, int | None, Any] | None:
    """The body of a jit (parameter, index in it, jaxpr) that may as well stand where its equation does; None
    for other equations, and for a jit that holds arrays of its own."""
    if eqn.primitive.name not in ("jit", "pjit"):
        return None
    ((name, index, jaxpr),) = sub_jaxprs(eqn)
    return None if open_jaxpr(jaxpr).constvars else (name, index, jaxpr)


def under(eqn: Any, jit: Any) -> Any:
    """An equation of a jit's body, named as jax names it there; without a line of its own, at the jit's."""
    outer, inner = jit.source_info, eqn.source_info
    names = outer.name_stack.extend(f"{jit.primitive.name}({jit.params['name']})") + inner.name_stack
    line = outer.traceback if inner.traceback is None else inner.traceback
    return eqn.replace(source_info=inner.replace(name_stack=names, traceback=line))


def is_backward(eqn: Any, inside: bool) -> bool:
    """Whether an equation belongs to the backward pass; what that computes again does not. inside: whether
    what it stands in does."""
    names = str(eqn.source_info.name_stack)
    return (inside or "transpose(" in names) and "rematted_computation" not in names


def plain_pins(pins: Any) -> Any:
    """Pins without jax: the spec of a NamedSharding, and dims left UNCONSTRAINED as '?'."""

    def plain(given: Any) -> Any:
        spec = given.spec if isinstance(given, NamedSharding) else given
        if not isinstance(spec, (PartitionSpec, tuple)):
            return spec
        return tuple("?" if dim is PartitionSpec.UNCONSTRAINED else dim for dim in spec)

    return {key: plain(given) for key, given in pins.items()} if isinstance(pins, Mapping) else pins


def fresh(var: Any) -> Any:
    """Another variable of the same type; a dropped result stays dropped."""
    return var if isinstance(var, jex.DropVar) else jex.Var(var.aval)


def is_literal(atom: Any) -> bool:
    """Whether an operand is a constant written in the equation itself."""
    return isinstance(atom, jex.Literal)


def auto_mesh(mesh: Mesh) -> Mesh:
    """The same devices and axes, with every axis Auto: the only mode in which unmodified models trace."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def partition_spec(spec: Spec) -> PartitionSpec:
    """A jax PartitionSpec: one axis as a bare name, no axis as None."""
    return PartitionSpec(*(None if not dim else dim[0] if len(dim) == 1 else dim for dim in spec))


def spec_tree(tree: Any, specs: Sequence[Spec]) -> Any:
    """A pytree of PartitionSpecs of structure `tree`."""
    return jax.tree.unflatten(tree, [partition_spec(spec) for spec in specs])


def named_sharding(mesh: Mesh, spec: Spec) -> NamedSharding:
    """The sharding of an array kept under `spec`."""
    return NamedSharding(mesh, partition_spec(spec))


@dataclasses.dataclass(frozen=True)
class Traced:
    """A step as a jaxpr, with what is needed to call it again.

    in_tree: structure of the tuple of dynamic arguments; out_tree: of the result. arguments, results: one
    ShapeDtypeStruct per flattened leaf. names: of the dynamic arguments. statics: (position, value) of the
    arguments that are part of the program. donated: flat indices of the leaves the step may overwrite. rules:
    of primitives that the user knows.
    """

    fn: Callable[..., Any]
    closed_jaxpr: Any
    in_tree: Any
    out_tree: Any
    arguments: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    names: tuple[str, ...]
    statics: tuple[tuple[int, Any], ...]
    donated: tuple[int, ...]
    rules: Mapping[str, str] = dataclasses.field(default_factory=dict)


def trace_step(
    fn: Callable[..., Any],
    args: Sequence[Any],
    static_argnums: int | Sequence[int] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    *,
    mesh: Any = None,
    rules: Mapping[str, str] | None = None,
) -> Traced:
    """Trace `fn(*args)`; args are arrays, numbers or ShapeDtypeStructs in any pytree.

    A step that is already jitted keeps its own static and donated arguments, unless others are given. Any
    other step donates its state: the arguments that a result replaces. Positions count all arguments, as in
    `jax.jit`. mesh: axis sizes, or a Mesh, for a step that needs one while it is traced. rules: kept.
    Raises TraceError if jax cannot trace it, InputError for positions that do not exist.
    """
    jitted = hasattr(fn, "trace") and hasattr(fn, "lower")
    given = _positions(static_argnums, len(args), "static_argnums")
    donate = _positions(donate_argnums, len(args), "donate_argnums")
    program = fn if jitted else jax.jit(fn, static_argnums=given or ())
    bare = [arg if given and index in given else _bare(arg) for index, arg in enumerate(args)]
    traced, closed = _trace(program, bare, fn, mesh)
    in_tree = traced.in_tree.children()[0]
    statics = _static_positions(fn, bare, traced.args_info[0], given)
    dynamic = [index for index in range(len(args)) if index not in statics]
    jaxpr = open_jaxpr(closed)
    held = Traced(
        fn=fn,
        closed_jaxpr=closed,
        in_tree=in_tree,
        out_tree=jax.tree.structure(traced.out_info),
        arguments=tuple(_struct(var.aval) for var in jaxpr.invars),
        results=tuple(_struct(var.aval) for var in jaxpr.outvars),
        names=tuple(argument_names(fn, len(args))[index] for index in dynamic),
        statics=tuple((index, args[index]) for index in statics),
        donated=(),
        rules=rules or {},
    )
    if donate is None:
        flat = tuple(traced.donate_argnums) if jitted else tuple(sorted(state_partners(held)))
    else:
        flat = _flat_indices(in_tree, [dynamic.index(index) for index in donate if index in dynamic])
    return dataclasses.replace(held, donated=flat)


def _trace(program: Any, args: list[Any], fn: Callable[..., Any], given: Any) -> tuple[Any, Any]:
    """jax's own trace and its closed jaxpr, free of any mesh that surrounds the call.

    A step that names the axes of a mesh needs the one that is given, or that surrounds the call, with Auto
    axes; it is erased afterwards.
    """
    surrounding = jax.sharding.get_mesh()
    nowhere = Mesh(np.empty((), dtype=object), ())
    around: list[Any] = [jax.set_mesh(nowhere)]
    if given:
        around.append(jax.sharding.use_abstract_mesh(_abstract(given)))
    if not surrounding.empty:
        around.append(jax.set_mesh(auto_mesh(surrounding)))
    failure: Exception | None = None
    for place, mesh in enumerate(around):
        try:
            with mesh:
                traced = program.trace(*args)
            return traced, _without_mesh(traced.jaxpr, nowhere) if place else traced.jaxpr
        except Exception as error:  # whatever the user's code raises while it is traced
            failure = failure or error
            if place and _needs_mesh(failure):
                failure = error
    name = getattr(fn, "__name__", type(fn).__name__)
    lines = str(failure).strip().splitlines()
    first = lines[0].rstrip(".") if lines else "no message"
    if len(around) == 1 and _needs_mesh(failure):
        raise TraceError(
            f"The step {name} needs a mesh while it is traced: {first}. "
            "Say which with mesh=, like {'data': 4, 'model': 2}."
        ) from failure
    raise TraceError(
        f"The step {name} cannot be traced: {type(failure).__name__}: {first}. Make jax.jit({name}) trace "
        f"with these arguments first; Python values that steer the program belong in static_argnums."
    ) from failure


def _needs_mesh(failure: Exception | None) -> bool:
    """Whether it says that there is no mesh, in jax's words."""
    said = str(failure)
    return "context mesh" in said or "non-empty mesh" in said or "unbound axis name" in said


def _abstract(mesh: Any) -> AbstractMesh:
    """A mesh of these axes, all Auto, without devices."""
    sizes = dict(mesh) if isinstance(mesh, Mapping) else dict(mesh.shape)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def _without_mesh(jaxpr: Any, nowhere: Mesh) -> Any:
    """The same jaxpr with no equation tied to the mesh it was traced under: with the context of one traced
    without, because jax has no public way to change one field of a context."""
    with jax.set_mesh(nowhere):
        plain = open_jaxpr(jax.make_jaxpr(lambda x: x + x)(0)).eqns[0].ctx
    return in_context(jaxpr, plain, nowhere)


def in_context(jaxpr: Any, context: Any, mesh: Mesh) -> Any:
    """The same jaxpr with every equation that saw a mesh in another context, the one on `mesh`."""
    inner = open_jaxpr(jaxpr)
    eqns: list[Any] = []
    for eqn in inner.eqns:
        bodies = {(name, index): in_context(body, context, mesh) for name, index, body in sub_jaxprs(eqn)}
        params = with_bodies(eqn, bodies)
        if isinstance(params.get("ctx_mesh"), Mesh):
            params = {**params, "ctx_mesh": mesh}
        eqns.append(eqn.replace(params=params, ctx=eqn.ctx if eqn.ctx.cur_abstract_mesh.empty else context))
    return close_jaxpr(inner.replace(eqns=eqns), jaxpr)


def _bare(arg: Any) -> Any:
    """Arrays as shapes without a sharding, so that no mesh they live on enters the trace."""

    def shape_of(leaf: Any) -> Any:
        if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
            return jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, weak_type=bool(getattr(leaf, "weak_type", False))
            )
        return leaf

    return jax.tree.map(shape_of, arg)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _positions(argnums: int | Sequence[int] | None, count: int, keyword: str) -> tuple[int, ...] | None:
    if argnums is None:
        return None
    several = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for index in several:
        if not -count <= index < count:
            raise InputError(
                f"{keyword} names argument {index}, but the step is given {count} arguments. "
                f"Give positions from 0 to {count - 1}."
            )
    return tuple(sorted({index % count for index in several}))


def _flat_indices(in_tree: Any, chosen: Sequence[int]) -> tuple[int, ...]:
    """The flat indices of the leaves of the chosen arguments."""
    flat: list[int] = []
    first = 0
    for index, tree in enumerate(in_tree.children()):
        if index in chosen:
            flat += range(first, first + tree.num_leaves)
        first += tree.num_leaves
    return tuple(flat)


def _static_positions(
    fn: Any, args: Sequence[Any], dynamic: Sequence[Any], given: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Which arguments became part of the program. A jitted step does not say: their structure tells."""
    missing = len(args) - len(dynamic)
    if given is not None and len(given) == missing:
        return given
    fitting = [
        left_out
        for left_out in itertools.combinations(range(len(args)), missing)
        if all(map(_may_be, [arg for index, arg in enumerate(args) if index not in left_out], dynamic))
    ]
    if len(fitting) == 1:
        return fitting[0]
    name = getattr(fn, "__name__", "the step")
    raise InputError(
        f"It cannot be told which {missing} of the {len(args)} arguments of {name} are static. "
        f"Name them with static_argnums."
    )


def _may_be(arg: Any, info: Any) -> bool:
    """Whether `arg` may have been traced to `info`: the same structure, each leaf of that shape and kind."""
    leaves, structure = jax.tree.flatten(arg)
    if structure != jax.tree.structure(info):
        return False
    for leaf, traced in zip(leaves, jax.tree.leaves(info), strict=True):
        number = isinstance(leaf, (bool, int, float, complex))
        if not number and getattr(leaf, "shape", None) != traced.shape:
            return False
        if number and (traced.shape != () or jax.numpy.result_type(leaf) != traced.dtype):
            return False
    return True


def argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    """One name per positional argument; those of `*rest` are rest.0, rest.1, ..."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # builtins and some callables have no signature
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}.{index}" for index in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"arg{index}" for index in range(len(names), count)]
    return names[:count]


def leaf_paths(traced: Traced) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a user calls each flattened argument and result: `state.params.layers.0.w`, `result.1.loss`."""
    leaves = jax.tree.unflatten(traced.in_tree, range(traced.in_tree.num_leaves))
    arguments = [
        join(name, path)
        for name, tree in zip(traced.names, leaves, strict=True)
        for path, _ in jax.tree.leaves_with_path(tree)
    ]
    result = jax.tree.unflatten(traced.out_tree, range(traced.out_tree.num_leaves))
    results = [join("result", path) for path, _ in jax.tree.leaves_with_path(result)]
    return tuple(arguments), tuple(results)


def join(name: str, path: Any) -> str:
    """The name of a leaf: its argument's, and its place in the argument's pytree."""
    rest = jax.tree_util.keystr(path, simple=True, separator=".")
    return f"{name}.{rest}" if rest else name


def state_partners(traced: Traced) -> dict[int, int]:
    """Flat argument index -> flat index of the result that replaces it, for every argument that is state.

    An argument is state if the result, or a part of it (an item of a tuple, list or dict, two levels deep),
    has the same structure, shapes and dtypes. A part replaces one argument only, and an argument of scalars
    alone is never state: a learning rate is not replaced by a loss.
    """
    partners: dict[int, int] = {}
    parts = list(_parts(traced.out_tree, 0, depth=2))
    first = 0
    for tree in traced.in_tree.children():
        avals = traced.arguments[first : first + tree.num_leaves]
        for part in parts if any(aval.shape for aval in avals) else ():
            start, structure = part
            if structure == tree and _same(avals, traced.results[start : start + tree.num_leaves]):
                partners |= {first + offset: start + offset for offset in range(tree.num_leaves)}
                taken = range(start, start + tree.num_leaves)
                parts = [p for p in parts if p[0] + p[1].num_leaves <= taken.start or p[0] >= taken.stop]
                break
        first += tree.num_leaves
    return partners


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(some, others, strict=True))


def _parts(tree: Any, first: int, depth: int) -> Iterator[tuple[int, Any]]:
    """(flat index of its first leaf, structure) of a result and of its parts, outermost first."""
    yield first, tree
    node = tree.node_data()
    if depth and node is not None and node[0] in (tuple, list, dict):
        for child in tree.children():
            yield from _parts(child, first, depth - 1)
            first += child.num_leaves
