"""Plans written by hand, for the tests of what applies them: no search, no cost."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from planner.graph.graph import Path, Site
from planner.hlo import Found, collectives
from planner.jax_compat import Traced, leaf_paths, open_jaxpr, sub_jaxprs
from planner.plans import LeafPlan, Plan
from planner.sharding.spec import Spec, pieces, replicated

Sites = dict[Site, tuple[Spec, ...]]


def hand_plan(
    traced: Traced,
    mesh: Mesh,
    sites: Sites | None = None,
    arguments: Mapping[str, Spec] | None = None,
    results: Mapping[str, Spec] | None = None,
) -> Plan:
    """A plan with the given sites and specs by path; what is not named is replicated."""
    argument_paths, result_paths = leaf_paths(traced)

    def leaf(path: str, struct: jax.ShapeDtypeStruct, specs: Mapping[str, Spec]) -> LeafPlan:
        spec = specs.get(path, replicated(len(struct.shape)))
        size = np.prod(struct.shape, initial=1.0) * struct.dtype.itemsize
        return LeafPlan(
            path, struct.shape, str(struct.dtype), spec, float(size) / pieces(spec, dict(mesh.shape))
        )

    return Plan(
        **{field.name: 0.0 for field in dataclasses.fields(Plan) if field.type is float},
        machine=f"cpu:{mesh.size}",
        mesh=dict(mesh.shape),
        scheme="",
        words="written by hand",
        stopped="not searched",
        memory={},
        alive=(),
        arguments=tuple(
            leaf(p, s, arguments or {}) for p, s in zip(argument_paths, traced.arguments, strict=True)
        ),
        results=tuple(leaf(p, s, results or {}) for p, s in zip(result_paths, traced.results, strict=True)),
        sites=sites or {},
        collectives=(),
        schemes=(),
        seconds={},
        unknown={},
        notes=(),
        fingerprint="",
        versions={},
    )


def walk(jaxpr: Any, path: Path = ()) -> Iterator[tuple[Path, int, Any]]:
    """Every equation of a jaxpr and of its bodies, with the path to it."""
    for number, eqn in enumerate(open_jaxpr(jaxpr).eqns):
        yield path, number, eqn
        for name, index, body in sub_jaxprs(eqn):
            yield from walk(body, (*path, (number, name, index)))


def pin_by_shape(closed_jaxpr: Any, specs: Mapping[tuple[int, ...], Spec]) -> Sites:
    """Every result, at any depth, whose shape has a spec."""
    return {
        Site("out", path, number, index): (specs[var.aval.shape],)
        for path, number, eqn in walk(closed_jaxpr)
        for index, var in enumerate(eqn.outvars)
        if getattr(var.aval, "shape", None) in specs
    }


def found_in(step: Any) -> tuple[Found, ...]:
    """The collectives of a compiled step that move more than scalars."""
    return tuple(found for found in collectives(step.lower().compile().as_text()) if found.bytes > 64)


def kinds(found: tuple[Found, ...]) -> dict[str, int]:
    """How many collectives of each kind; an all-reduce that is only sliced counts as a reduce-scatter."""
    spelled = ("reduce-scatter" if one.sliced else one.kind for one in found)
    return dict(collections.Counter(spelled))


def close(some: Any, others: Any, rtol: float = 1e-5) -> None:
    """Two trees of arrays are equal, leaf by leaf, relative to the largest entry of the leaf."""
    for one, other in zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True):
        largest = float(np.abs(other).max(initial=0.0))
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * largest)
