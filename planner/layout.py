"""JAX edge: on a TPU a weight's gradient is laid out as the weight.

Where a matmul makes a gradient transposed, XLA would rather bring the weight and its moments into that
layout, and the new ones back: whole copies of all of them.
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
    struct = jax.ShapeDtypeStruct(source.aval.shape, source.aval.dtype)
    rows = Layout(major_to_minor=tuple(range(len(struct.shape))))
    (made,) = open_jaxpr(jax.make_jaxpr(lambda x: with_layout_constraint(x, rows))(struct)).eqns
    context = {"source_info": like.source_info, "ctx": like.ctx}
    return made.replace(invars=[source], outvars=[jex.Var(source.aval)], **context)
