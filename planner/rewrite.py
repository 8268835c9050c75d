"""JAX edge: writes a plan's specs into a jaxpr as sharding constraints, at every depth.

The program itself is not touched: an equation keeps its parameters, source line and context, and each
constraint is a copy of the equation jax itself builds for it. Constraints change no type, so every nested
jaxpr stays valid where it is. The user's own constraints are taken out; they speak of another mesh.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import Mesh

from planner.errors import PlanFileError
from planner.graph.graph import Path, Site
from planner.jax_compat import (
    close_jaxpr,
    is_literal,
    named_sharding,
    open_jaxpr,
    sub_jaxprs,
    unplaced,
    with_bodies,
)
from planner.sharding.spec import Spec, show

Chain = tuple[Spec, ...]
Place = tuple[str, int, int]  # kind, equation (-1 for 'in' and 'ret'), index
Body = tuple[int, str, int | None]


@dataclasses.dataclass
class _Scope:
    """The sites of one jaxpr and of the bodies inside it."""

    path: Path
    sites: dict[Place, Chain] = dataclasses.field(default_factory=dict)
    bodies: dict[Body, "_Scope"] = dataclasses.field(default_factory=dict)

    def key(self) -> Any:
        """What decides the rewriting: equal keys rewrite a shared body to one object."""
        return frozenset(self.sites.items()), frozenset((k, body.key()) for k, body in self.bodies.items())


class _Constraints:
    """Makes constraint equations, from one template per spec and rank."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.templates: dict[Spec, Any] = {}

    def equation(self, source: Any, spec: Spec, like: Any) -> Any:
        """The equation that keeps `source` under `spec`, at the source line and in the context of `like`."""
        if spec not in self.templates:
            sharding = named_sharding(self.mesh, spec)
            struct = jax.ShapeDtypeStruct(source.aval.shape, source.aval.dtype)
            with jax.set_mesh(self.mesh):  # an Explicit mesh around the call would make of it an assertion
                made = jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(struct)
            (self.templates[spec],) = open_jaxpr(made).eqns
        context = {} if like is None else {"source_info": like.source_info, "ctx": like.ctx}
        return self.templates[spec].replace(invars=[source], outvars=[jex.Var(source.aval)], **context)


def rewrite(closed_jaxpr: Any, sites: Mapping[Site, Chain], mesh: Mesh) -> Any:
    """The closed jaxpr with a chain of sharding constraints at every site.

    Of 'in' and 'out', all later uses see the constrained value; 'use' and 'ret' concern one place. Two uses
    of a value in one spec share one constrained value, and with it one gather. The axes of `mesh` are Auto.
    Raises PlanFileError if a site does not exist in this program, or has another rank.
    """
    scope = _scopes(sites)
    _check(closed_jaxpr, scope)
    return _rewrite(closed_jaxpr, scope, _Constraints(mesh), {})


def _scopes(sites: Mapping[Site, Chain]) -> _Scope:
    top = _Scope(())
    for site, chain in sites.items():
        scope = top
        for step in site.path:
            scope = scope.bodies.setdefault(step, _Scope((*scope.path, step)))
        eqn = site.eqn if site.kind in ("out", "use") else -1
        scope.sites[site.kind, eqn, site.index] = chain
    return top


def _rewrite(jaxpr: Any, scope: _Scope, constraints: _Constraints, done: dict[Any, Any]) -> Any:
    """One jaxpr, closed or open; `done` holds the bodies rewritten so far, by identity and sites."""
    identity = (id(jaxpr), scope.key())
    if identity in done:
        return done[identity]
    inner = open_jaxpr(jaxpr)
    eqns: list[Any] = []
    values: dict[Any, Any] = {}  # a variable of the old program -> the atom that stands for it now
    known: dict[tuple[Any, Spec], Any] = {}  # (variable, spec) -> that variable under that spec

    def read(atom: Any) -> Any:
        return atom if is_literal(atom) else values.get(atom, atom)

    def constrain(atom: Any, place: Place, like: Any) -> Any:
        for spec in scope.sites.get(place, ()):
            if not _can_hold(atom, spec):
                return atom
            if (atom, spec) not in known:
                eqn = constraints.equation(atom, spec, like)
                eqns.append(eqn)
                known[atom, spec] = known[eqn.outvars[0], spec] = eqn.outvars[0]
            atom = known[atom, spec]
        return atom

    first = inner.eqns[0] if inner.eqns else None
    for index, var in enumerate(inner.invars):
        values[var] = constrain(var, ("in", -1, index), first)
    for number, eqn in enumerate(inner.eqns):
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == "sharding_constraint":
            values[eqn.outvars[0]] = constrain(operands[0], ("out", number, 0), eqn)
            continue
        operands = [constrain(atom, ("use", number, index), eqn) for index, atom in enumerate(operands)]
        bodies = {
            (name, index): _rewrite(body, _inner(scope, (number, name, index)), constraints, done)
            for name, index, body in sub_jaxprs(eqn)
        }
        eqns.append(eqn.replace(invars=operands, params=unplaced(with_bodies(eqn, bodies))))
        for index, var in enumerate(eqn.outvars):
            values[var] = constrain(var, ("out", number, index), eqn)
    last = eqns[-1] if eqns else None
    results = [constrain(read(a), ("ret", -1, i), last) for i, a in enumerate(inner.outvars)]
    done[identity] = close_jaxpr(inner.replace(eqns=eqns, outvars=results), jaxpr)
    return done[identity]


def _inner(scope: _Scope, step: Body) -> _Scope:
    return scope.bodies.get(step) or _Scope((*scope.path, step))


def _can_hold(atom: Any, spec: Spec) -> bool:
    """Literals, dropped results, tokens and float0 have no place; a typed key may have another rank."""
    if is_literal(atom) or isinstance(atom, jex.DropVar) or not hasattr(atom.aval, "dtype"):
        return False
    return atom.aval.dtype != jax.dtypes.float0 and len(atom.aval.shape) == len(spec)


def _check(jaxpr: Any, scope: _Scope) -> None:
    """Every site of the plan must exist here, with the planned rank."""
    inner = open_jaxpr(jaxpr)
    for (kind, number, index), chain in scope.sites.items():
        atoms: Any = ()
        if kind == "in":
            atoms = inner.invars
        elif kind == "ret":
            atoms = inner.outvars
        elif number < len(inner.eqns):
            atoms = inner.eqns[number].invars if kind == "use" else inner.eqns[number].outvars
        if index >= len(atoms):
            raise _foreign(f"the place {_place(scope.path, kind, number, index)}")
        shape = getattr(atoms[index].aval, "shape", ())
        wrong = [spec for spec in chain if len(spec) != len(shape)]
        if wrong and not _is_extended(atoms[index]):
            where = _place(scope.path, kind, number, index)
            raise _foreign(f"an array for {show(wrong[0])} at {where} (its shape is {shape})")
    for step, body in scope.bodies.items():
        number, name, index = step
        held = sub_jaxprs(inner.eqns[number]) if number < len(inner.eqns) else []
        found = [sub for param, position, sub in held if (param, position) == (name, index)]
        if not found:
            raise _foreign(f"the nested program {_route(body.path)}")
        _check(found[0], body)


def _is_extended(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is None or bool(jnp.issubdtype(dtype, jax.dtypes.extended))


def _foreign(what: str) -> PlanFileError:
    return PlanFileError(f"The plan needs {what}, which this step does not have. Plan again for this step.")


def _route(path: Path) -> str:
    return "/".join(f"{eqn}.{name}" + ("" if i is None else f"[{i}]") for eqn, name, i in path) or "top"


def _place(path: Path, kind: str, number: int, index: int) -> str:
    names = {"in": "input", "ret": "returned value", "use": "operand", "out": "result"}
    equation = f" of equation {number}" if number >= 0 else ""
    return f"{names[kind]} {index}{equation} in {_route(path)}"
