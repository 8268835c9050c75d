"""JAX edge: on a TPU a weight's gradient is laid out as the weight, and so are the parts of a scatter's sum.

Where a matmul makes a gradient transposed, XLA would rather bring the weight and its moments into that
layout, and the new ones back: whole copies of all of them. Where a scatter's sum is scattered over devices,
XLA may lay its parts out with their rows along the lanes of tiles, and then sums the whole on every device.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax.experimental.layout import Layout, with_layout_constraint

from planner.jax_compat import is_literal, open_jaxpr

Shape = tuple[int, ...]


def in_rows(eqns: Sequence[Any], weights: Collection[Shape]) -> tuple[list[Any], dict[Any, Any]]:
    """The equations of a program with the gradients of some weights laid out in the order of their dims, and
    the variables that stand for others in its results. weights: their shapes.

    None where gradients of such shapes are added up, as those of a matrix that is used twice: XLA then no
    longer finishes their sums together (libtpu 0.0.42).
    """
    makers = {var: eqn for eqn in eqns for var in eqn.outvars}
    added = {atom for eqn in eqns if eqn.primitive.name == "add_any" for atom in _variables(eqn)}
    if not weights or any(var.aval.shape in weights and _is_turned_product(var, makers) for var in added):
        return list(eqns), {}
    placed = {atom for eqn in eqns if eqn.primitive.name == "sharding_constraint" for atom in _variables(eqn)}
    written, laid = list[Any](), dict[Any, Any]()
    for eqn in eqns:
        eqn = eqn.replace(invars=[atom if is_literal(atom) else laid.get(atom, atom) for atom in eqn.invars])
        written.append(eqn)
        for var in eqn.outvars:
            turned = var.aval.shape in weights and _is_turned_product(var, makers)
            if turned and var not in placed:
                written.append(_row_major(var, eqn))
                laid[var] = written[-1].outvars[0]
    return written, laid


def scattered_in_rows(eqns: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """The equations of a program with each device's part of what a scatter adds up laid out in the order of
    its dims, and the variables that stand for others in its results. Only of sums that a constraint scatters
    over devices: those of which it splits a dim that it leaves whole in what is added to; and none that is
    added to another as it is: XLA then no longer finishes their sums together (libtpu 0.0.42)."""
    makers = {var: eqn for eqn in eqns for var in eqn.outvars}
    added = _added(eqns, makers)
    written, laid = list[Any](), dict[Any, Any]()
    for eqn in eqns:
        eqn = eqn.replace(invars=[atom if is_literal(atom) else laid.get(atom, atom) for atom in eqn.invars])
        written.append(eqn)
        if _scatters_sum(eqn, makers) and eqn.outvars[0] not in added:
            (var,) = eqn.outvars
            written.append(_part_row_major(eqn))
            laid[var] = written[-1].outvars[0]
    return written, laid


def _added(eqns: Sequence[Any], makers: Mapping[Any, Any]) -> set[Any]:
    """The variables that are added up, under whatever shardings."""
    found = set[Any]()
    for var in (var for eqn in eqns if eqn.primitive.name == "add_any" for var in _variables(eqn)):
        found.add(var)
        while var in makers and makers[var].primitive.name == "sharding_constraint":
            (var,) = makers[var].invars
            found.add(var)
    return found


def _scatters_sum(eqn: Any, makers: Mapping[Any, Any]) -> bool:
    """Whether an equation is the constraint that scatters the sum of a scatter-add over devices."""
    maker = _constrained(eqn, makers)
    if maker is None or maker.primitive.name != "scatter-add" or is_literal(maker.invars[0]):
        return False
    start = makers.get(maker.invars[0])
    if start is None or start.primitive.name != "sharding_constraint":
        return False
    rank = len(eqn.outvars[0].aval.shape)
    before, after = (_entries(one.params["sharding"].spec, rank) for one in (start, eqn))
    return rank > 1 and any(one and not other for one, other in zip(after, before, strict=True))


def _constrained(eqn: Any, makers: Mapping[Any, Any]) -> Any:
    """The equation whose result a sharding constraint places; None of another equation or an argument."""
    return makers.get(eqn.invars[0]) if eqn.primitive.name == "sharding_constraint" else None


def _entries(spec: Any, rank: int) -> list[Any]:
    return [*spec, *[None] * (rank - len(spec))]


def _variables(eqn: Any) -> list[Any]:
    return [atom for atom in eqn.invars if not is_literal(atom)]


def _is_turned_product(var: Any, makers: Mapping[Any, Any]) -> bool:
    """Whether a variable is the transpose of a matmul's result, under whatever shardings."""
    found = []
    while var in makers and makers[var].primitive.name in ("sharding_constraint", "transpose"):
        found.append(makers[var].primitive.name)
        (var,) = makers[var].invars
    return "transpose" in found and var in makers and makers[var].primitive.name == "dot_general"


def _row_major(source: Any, like: Any) -> Any:
    """The equation that lays an array out in the order of its dims, at the source line of `like`."""
    return _equation(_in_order, source, like)


def _part_row_major(placed: Any) -> Any:
    """The equation that lays out what each device has of a constrained array in the order of its dims. In a
    shard_map, because a layout of the whole array would make it whole on every device."""
    sharding = placed.params["sharding"]
    specs = {"in_specs": sharding.spec, "out_specs": sharding.spec}
    with jax.set_mesh(sharding.mesh):
        mapped = jax.shard_map(_in_order, mesh=sharding.mesh, check_vma=False, **specs)
        return _equation(mapped, placed.outvars[0], placed)


def _in_order(array: Any) -> Any:
    return with_layout_constraint(array, Layout(major_to_minor=tuple(range(array.ndim))))


def _equation(run: Any, source: Any, like: Any) -> Any:
    """The one equation that `run` is, of a variable, at the source line and in the context of `like`."""
    struct = jax.ShapeDtypeStruct(source.aval.shape, source.aval.dtype)
    (made,) = open_jaxpr(jax.make_jaxpr(run)(struct)).eqns
    context = {"source_info": like.source_info, "ctx": like.ctx}
    return made.replace(invars=[source], outvars=[jex.Var(source.aval)], **context)
