"""JAX edge: calls that cannot be looked into, and what is known of them all the same.

    planner.with_rule(kernel, "b s! d, d! f -> b s! f")   a function, with a line that says how it splits
    plan(step, *args, rules={"cumlogsumexp2": "b s! -> b s!"})   a primitive that XLA itself can split
    jax.shard_map(...) in the step                        split as its specs say, on the mesh that it names

A function with a rule is run by each device on its own part, as `jax.shard_map` would; results that a split
factor leaves partial are added up. Everything else without a rule stays whole.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax.interpreters import mlir
from jax.sharding import Mesh, PartitionSpec

from planner import rules
from planner.errors import InputError
from planner.graph.graph import WITH_RULE, Region
from planner.graph.notation import parse
from planner.graph.rule import Dim, Rule
from planner.jax_compat import in_context, open_jaxpr, partition_spec, scan_length, sub_jaxprs
from planner.sharding.spec import Spec, axes_of, replicated

# Their parameters hold the shapes, or code for one device: they run on whole arrays, or inside `with_rule`.
FIXED = frozenset({"ffi_call", "io_callback", "pallas_call", "pure_callback", "shard_map"})


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A user's function of flat arrays, with its rule. flops: of one whole call."""

    fn: Callable[..., Any]
    in_tree: Any
    rule: str
    flops: float

    def flat(self, *leaves: Any) -> list[Any]:
        """The function, from leaves to leaves."""
        return jax.tree.leaves(self.fn(*jax.tree.unflatten(self.in_tree, leaves)))


_primitive = jex.Primitive(WITH_RULE)
_primitive.multiple_results = True
_primitive.def_impl(lambda *leaves, call: jax.jit(call.flat)(*leaves))
_primitive.def_abstract_eval(lambda *avals, call: jax.make_jaxpr(call.flat)(*avals).out_avals)
mlir.register_lowering(
    _primitive, mlir.lower_fun(lambda *leaves, call: call.flat(*leaves), multiple_results=True)
)


def with_rule(fn: Callable[..., Any], rule: str, *, flops: float = 0.0) -> Callable[..., Any]:
    """`fn`, which the planner may split as `rule` says: a kernel, a foreign call, anything opaque.

    fn: from arrays (in pytrees) to arrays; under a plan it is given each device's parts, so it must work at
    any shape that the rule allows. rule: one line, operands and results in flattened order, such as
    "b s! d, d! f -> b s! f" (`planner.graph.notation`): a factor that no result has leaves partial results,
    which are added up; `!` keeps a factor whole. flops: of one call on whole arrays, for its price; 0 prices
    it by its bytes. Without a plan it is `fn` itself. To be differentiated it goes inside a `jax.custom_vjp`.
    """

    def call(*args: Any) -> Any:
        leaves, in_tree = jax.tree.flatten(args)
        out_tree = jax.tree.structure(jax.eval_shape(fn, *args))
        results = _primitive.bind(*leaves, call=_Call(fn, in_tree, rule, flops))
        return jax.tree.unflatten(out_tree, results)

    return call


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of an equation that the table of rules has not."""

    rule: Rule
    flops: float
    region: Region | None = None


def known(eqn: Any, given: Mapping[str, str]) -> Known | None:
    """The rule of a function with one, of a primitive that the user names in `given`, or of a shard_map; None
    if there is none."""
    name, ins, outs = eqn.primitive.name, _shapes(eqn.invars), _shapes(eqn.outvars)
    if name == WITH_RULE:
        call = eqn.params["call"]
        return Known(parse(call.rule, ins, outs), call.flops)
    if name in given:
        avals = [var.aval for var in eqn.outvars]
        return Known(parse(given[name], ins, outs), rules.flops_of(name, eqn.params, (), avals))
    return _region(eqn, ins, outs) if name == "shard_map" else None


def check_rules(given: Mapping[str, str], jaxpr: Any) -> None:
    """Raises InputError for a rule of a primitive that the step has not, or that is bound to its shapes."""
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for text in given.values()):
        raise InputError(f"rules is {given!r}; give primitives and lines, like {{'my_op': 'b i -> b i'}}.")
    for name in given:
        if name in FIXED:
            raise InputError(
                f"A {name} is made for the shapes of its operands, so a rule alone cannot split it. "
                f"Wrap the function that makes it: planner.with_rule(function, {given[name]!r})."
            )
    names = set(_primitives(jaxpr))
    for name in given:
        if name not in names:
            raise InputError(
                f"There is a rule for {name!r}, but the step has no such primitive. "
                f"Without a rule are {', '.join(sorted(names - rules.TABLE.keys())) or 'none'}."
            )


def _primitives(jaxpr: Any) -> Any:
    for eqn in open_jaxpr(jaxpr).eqns:
        bodies = sub_jaxprs(eqn)
        if not bodies:
            yield eqn.primitive.name
        for _, _, body in bodies:
            yield from _primitives(body)


def _shapes(atoms: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(getattr(atom.aval, "shape", ())) for atom in atoms]


def _region(eqn: Any, ins: Sequence[tuple[int, ...]], outs: Sequence[tuple[int, ...]]) -> Known:
    """A shard_map: a factor for each set of axes that its specs give to a dim; the rest of a dim is whole.

    An axis that it gives to one dim alone, and to another together with more axes, has no factor of its own:
    then all of it stays whole.
    """
    sizes = dict(eqn.params["mesh"].shape)
    specs = [*_plain(eqn.params["in_specs"], ins), *_plain(eqn.params["out_specs"], outs)]
    several = {axes for spec in specs for axes in spec if axes}
    mixed = len({axis for axes in several for axis in axes}) < sum(map(len, several))
    factor = {} if mixed else {axes: f"m{i}" for i, axes in enumerate(sorted(several))}
    extents = {name: _product(sizes[axis] for axis in axes) for axes, name in factor.items()}
    names = (f"u{i}" for i in itertools.count())

    def dim(extent: int, axes: tuple[str, ...]) -> Dim:
        major, rest = factor.get(axes), next(names)
        extents[rest] = extent // extents[major] if major else extent
        return (rest,) if major is None else (major,) if extents[rest] == 1 else (major, rest)

    shaped = zip([*ins, *outs], specs, strict=True)
    dims = [tuple(dim(n, axes) for n, axes in zip(shape, spec, strict=True)) for shape, spec in shaped]
    used = {name for value in dims for one in value for name in one}
    majors = frozenset(factor.values())
    rule = Rule(
        operands=tuple(dims[: len(ins)]),
        results=tuple(dims[len(ins) :]),
        sizes={name: extent for name, extent in extents.items() if name in used},
        whole=frozenset(used - majors),
        finished=majors,
    )
    region = Region(tuple(sizes.items()), tuple((name, axes) for axes, name in factor.items()))
    return Known(rule, _flops(eqn.params["jaxpr"]) * _product(sizes.values()), region)


def _plain(specs: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Spec]:
    """PartitionSpecs as ours, with an entry for each dim."""
    return [
        (*(((dim,) if isinstance(dim, str) else tuple(dim or ())) for dim in spec), *replicated(len(shape)))[
            : len(shape)
        ]
        for spec, shape in zip(specs, shapes, strict=True)
    ]


def _product(numbers: Any) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def _flops(jaxpr: Any) -> float:
    """FLOPs of a body on one device, as far as it is made of known primitives."""
    total = 0.0
    for eqn in open_jaxpr(jaxpr).eqns:
        bodies = sub_jaxprs(eqn)
        inside = sum(_flops(body) for _, _, body in bodies) * scan_length(eqn)
        if not bodies and eqn.primitive.name in rules.TABLE:
            avals = ([atom.aval for atom in eqn.invars], [var.aval for var in eqn.outvars])
            inside = rules.flops_of(eqn.primitive.name, eqn.params, *avals)
        total += inside
    return total


def on_parts(eqn: Any, ins: Sequence[Spec], outs: Sequence[Spec], mesh: Mesh) -> Any:
    """The equation of a `with_rule` function that each device runs on its own parts. ins: the specs of the
    operands. outs: of the results, partial results added up.

    Raises InputError if the function does not give the parts that its rule promises.
    """
    call = eqn.params["call"]
    rule = parse(call.rule, _shapes(eqn.invars), _shapes(eqn.outvars))
    split = {
        dim[0]: axes
        for dims, spec in zip(rule.operands, ins, strict=True)
        for dim, axes in zip(dims, spec, strict=True)
        if dim and axes
    }
    summed = tuple(axis for factor in rule.reduced for axis in split.get(factor, ()))

    def run(*parts: Any) -> list[Any]:
        return [_sum(part, spec, summed) for part, spec in zip(call.flat(*parts), outs, strict=True)]

    try:
        return _mapped(run, eqn, ins, outs, mesh)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The function with the rule {call.rule!r} does not run on the parts that the rule promises: "
            f"{str(error).strip().splitlines()[0]} Mark what cannot be split with '!'."
        ) from error


def _sum(part: Any, spec: Spec, summed: tuple[str, ...]) -> Any:
    """Partial results added up: scattered over the axes that the result is split by, whole over others."""
    for dim, axes in enumerate(spec):
        scattered = tuple(axis for axis in axes if axis in summed)
        if scattered:
            part = jax.lax.psum_scatter(part, scattered, scatter_dimension=dim, tiled=True)
    rest = tuple(axis for axis in summed if axis not in axes_of(spec))
    return jax.lax.psum(part, rest) if rest else part


def on_whole(eqn: Any, mesh: Mesh) -> Any:
    """The equation of a kernel that every device runs on whole arrays; a compiler that splits programs would
    not take it as it stands."""

    def run(*arrays: Any) -> Any:
        found = eqn.primitive.bind(*arrays, **eqn.params)
        return found if eqn.primitive.multiple_results else [found]

    return _mapped(run, eqn, _all_whole(eqn.invars), _all_whole(eqn.outvars), mesh)


def on_mesh(eqn: Any, mesh: Mesh) -> Any:
    """The equation of a shard_map, whatever mesh it was written with, on the same axes of this one."""
    params = eqn.params
    axes, checked = set(params["newly_manual_axes"]), params["check_vma"]

    def mapped(run: Any, ins: Any, outs: Any, check: bool) -> Any:
        return jax.shard_map(run, mesh=mesh, in_specs=ins, out_specs=outs, axis_names=axes, check_vma=check)

    with jax.set_mesh(mesh):
        (probe,) = open_jaxpr(
            jax.make_jaxpr(mapped(lambda x: x + x, PartitionSpec(), PartitionSpec(), False))(0)
        ).eqns
    context = open_jaxpr(probe.params["jaxpr"]).eqns[0].ctx
    body = in_context(params["jaxpr"], context, mesh)
    run = jex.jaxpr_as_fun(body if hasattr(body, "consts") else jex.ClosedJaxpr(body, ()))
    return _one(mapped(run, tuple(params["in_specs"]), list(params["out_specs"]), checked), eqn, mesh)


def _all_whole(atoms: Sequence[Any]) -> list[Spec]:
    return [replicated(len(shape)) for shape in _shapes(atoms)]


def _mapped(run: Any, eqn: Any, ins: Sequence[Spec], outs: Sequence[Spec], mesh: Mesh) -> Any:
    """One shard_map equation, with the operands and results of `eqn`."""
    specs: list[tuple[PartitionSpec, ...]] = [tuple(map(partition_spec, side)) for side in (ins, outs)]
    mapped = jax.shard_map(run, mesh=mesh, in_specs=specs[0], out_specs=list(specs[1]), check_vma=False)
    return _one(mapped, eqn, mesh)


def _one(mapped: Any, eqn: Any, mesh: Mesh) -> Any:
    """The equation that calling `mapped` is, with the operands, results and line of `eqn`."""
    with jax.set_mesh(mesh):
        structs = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
        made = open_jaxpr(jax.make_jaxpr(mapped)(*structs))
    wanted, found = _shapes(eqn.outvars), _shapes(made.outvars)
    if wanted != found:
        raise ValueError(f"Its results are {found} where {wanted} was promised.")
    if made.constvars or len(made.eqns) != 1:
        raise ValueError("It holds arrays of its own; make them its arguments.")
    (one,) = made.eqns
    return one.replace(
        invars=[eqn.invars[made.invars.index(atom)] for atom in one.invars],
        outvars=list(eqn.outvars),
        source_info=eqn.source_info,
        ctx=eqn.ctx,
    )
