"""JAX edge: writes a plan's specs into a jaxpr as sharding constraints, at every depth.

The program itself is not touched, but for jits inside it, which are written out: an equation keeps its
parameters, source line and context, and each constraint is a copy of the equation jax itself builds for it.
Constraints change no type, so every nested jaxpr stays valid where it is. The user's own constraints are
taken out; they speak of another mesh.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax.sharding import Mesh

from planner.errors import PlanFileError
from planner.graph.graph import WITH_RULE, Path, Site
from planner.jax_compat import (
    body_in_place,
    changes_nothing,
    close_jaxpr,
    fresh,
    is_literal,
    named_sharding,
    open_jaxpr,
    sub_jaxprs,
    under,
    unplaced,
    with_bodies,
)
from planner.layout import in_rows, scattered_in_rows
from planner.opaque import on_mesh, on_parts, on_whole
from planner.sharding.spec import Spec, replicated, show

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

    def __init__(self, mesh: Mesh, weights: Collection[tuple[int, ...]], tiled: bool):
        self.mesh, self.weights, self.tiled = mesh, weights, tiled
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


def rewrite(
    closed_jaxpr: Any,
    sites: Mapping[Site, Chain],
    mesh: Mesh,
    weights: Collection[tuple[int, ...]] = (),
    tiled: bool = False,
) -> Any:
    """The closed jaxpr with a chain of sharding constraints at every site. weights: shapes of what has its
    gradient laid out as it lies itself. tiled: whether arrays lie in tiles, as a TPU has them, so that the
    parts of scatters' sums are laid out too.

    Of 'in' and 'out', all later uses see the constrained value; 'use' and 'ret' concern one place. Two uses
    of a value in one spec share one constrained value, and with it one gather, also where they stand in
    different jits. The axes of `mesh` are Auto. Raises PlanFileError if a site does not exist in this
    program, or has another rank.
    """
    scope = _scopes(sites)
    _check(closed_jaxpr, scope)
    return _rewritten(closed_jaxpr, scope, _Constraints(mesh, weights, tiled), {})


def _scopes(sites: Mapping[Site, Chain]) -> _Scope:
    top = _Scope(())
    for site, chain in sites.items():
        scope = top
        for step in site.path:
            scope = scope.bodies.setdefault(step, _Scope((*scope.path, step)))
        eqn = site.eqn if site.kind in ("out", "use") else -1
        scope.sites[site.kind, eqn, site.index] = chain
    return top


def _rewritten(jaxpr: Any, scope: _Scope, constraints: _Constraints, done: dict[Any, Any]) -> Any:
    """One jaxpr, closed or open; `done` holds the bodies rewritten so far, by identity and sites."""
    identity = (id(jaxpr), scope.key())
    if identity not in done:
        inner, body = open_jaxpr(jaxpr), _Body(constraints, done)
        results = body.walk(inner, list(inner.invars), scope, None)
        eqns, laid = in_rows(body.eqns, constraints.weights)
        results = [atom if is_literal(atom) else laid.get(atom, atom) for atom in results]
        if constraints.tiled:
            eqns, laid = scattered_in_rows(eqns)
            results = [atom if is_literal(atom) else laid.get(atom, atom) for atom in results]
        done[identity] = close_jaxpr(inner.replace(eqns=eqns, outvars=results), jaxpr)
    return done[identity]


class _Body:
    """The equations of a new jaxpr. Jits are written out in their place: a forward and a backward pass often
    are two of them, and only uses of one constrained value are sure to share its gather."""

    def __init__(self, constraints: _Constraints, done: dict[Any, Any]) -> None:
        self.constraints, self.done = constraints, done
        self.eqns: list[Any] = []
        self.known: dict[tuple[Any, Spec], Any] = {}  # (variable, spec) -> that variable under that spec

    def walk(self, inner: Any, operands: list[Any], scope: _Scope, jit: Any) -> list[Any]:
        """Writes the equations of an open jaxpr, given its operands, and returns its results as atoms. jit:
        the equation that it is the body of, if it is written out in place."""
        values: dict[Any, Any] = {}  # a variable of the old program -> the atom that stands for it now

        def read(atom: Any) -> Any:
            return atom if is_literal(atom) else values.get(atom, atom)

        first = inner.eqns[0] if inner.eqns else jit
        for index, (var, atom) in enumerate(zip(inner.invars, operands, strict=True)):
            values[var] = self.constrain(atom, scope, ("in", -1, index), first, jit)
        for number, eqn in enumerate(inner.eqns):
            found = self.equation(eqn, [read(atom) for atom in eqn.invars], scope, number, jit)
            for index, (var, atom) in enumerate(zip(eqn.outvars, found, strict=True)):
                values[var] = self.constrain(atom, scope, ("out", number, index), eqn, jit)
        last = inner.eqns[-1] if inner.eqns else jit
        return [
            self.constrain(read(atom), scope, ("ret", -1, index), last, jit)
            for index, atom in enumerate(inner.outvars)
        ]

    def equation(self, eqn: Any, operands: list[Any], scope: _Scope, number: int, jit: Any) -> list[Any]:
        """Writes one equation, its uses constrained, and returns its results as atoms."""
        if changes_nothing(eqn):
            return operands
        operands = [
            self.constrain(atom, scope, ("use", number, index), eqn, jit)
            for index, atom in enumerate(operands)
        ]
        body = body_in_place(eqn)
        if body is not None:
            (name, index, jaxpr) = body
            outer = eqn if jit is None else under(eqn, jit)
            return self.walk(open_jaxpr(jaxpr), operands, _inner(scope, (number, name, index)), outer)
        bodies = {
            (name, index): _rewritten(
                jaxpr, _inner(scope, (number, name, index)), self.constraints, self.done
            )
            for name, index, jaxpr in sub_jaxprs(eqn)
        }
        results = list(eqn.outvars) if jit is None else [fresh(var) for var in eqn.outvars]
        new = eqn if jit is None else under(eqn, jit)
        new = new.replace(invars=operands, outvars=results, params=unplaced(with_bodies(eqn, bodies)))
        self.eqns.append(self.opaque(new, scope, number))
        return results

    def opaque(self, eqn: Any, scope: _Scope, number: int) -> Any:
        """The equation as each device is to run it, if it is one that no compiler could split."""
        name, mesh = eqn.primitive.name, self.constraints.mesh
        if name == WITH_RULE:
            ins = [_last(scope, ("use", number, i), atom) for i, atom in enumerate(eqn.invars)]
            outs = [_last(scope, ("out", number, i), var) for i, var in enumerate(eqn.outvars)]
            return on_parts(eqn, ins, outs, mesh)
        if name == "pallas_call":
            return on_whole(eqn, mesh)
        return on_mesh(eqn, mesh) if name == "shard_map" else eqn

    def constrain(self, atom: Any, scope: _Scope, place: Place, like: Any, jit: Any) -> Any:
        """An atom under the specs of a site, one after the other."""
        for spec in scope.sites.get(place, ()):
            if not _can_hold(atom, spec):
                return atom
            if (atom, spec) not in self.known:
                near = like if jit is None or like is jit else under(like, jit)
                eqn = self.constraints.equation(atom, spec, near)
                self.eqns.append(eqn)
                self.known[atom, spec] = self.known[eqn.outvars[0], spec] = eqn.outvars[0]
            atom = self.known[atom, spec]
        return atom


def _last(scope: _Scope, place: Place, atom: Any) -> Spec:
    return (scope.sites.get(place) or (replicated(len(atom.aval.shape)),))[-1]


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
