"""Arrays that the plan keeps split everywhere, and that the program holds whole on every device.

A value and a buffer of the program are taken for the same where shape (as a multiset of extents, since
compilers transpose) and source line agree. A value that the plan keeps or uses whole anywhere, or whose whole
partial sums or gathered parts one of its collectives moves, is none of these. Pure data: no jax.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping

from planner.graph.graph import Graph, Op
from planner.hlo_text import dims, parse, parts, size, source, sources
from planner.plans import Plan
from planner.sharding.spec import Spec

Key = tuple[str, tuple[int, ...]]  # file:line without folders, extents above 1, sorted


@dataclasses.dataclass(frozen=True)
class Whole:
    """An array that is whole where it was to be split. name: of the value, bytes: on one device."""

    name: str
    bytes: float
    source: str


def never_whole(graph: Graph, plan: Plan) -> dict[Key, str]:
    """What the plan splits wherever it is made and used -> the value's name."""
    found: dict[Key, str] = {}
    allowed: set[Key] = set()
    for op in graph.ops:
        for value in op.results:
            one = graph.values[value]
            key = _key(op.source, one.shape)
            specs = [spec for site in one.made for spec in plan.sites.get(site, ())]
            if not specs or any(map(_is_whole, specs)) or _is_moved(plan, op.source, one.bytes):
                allowed.add(key)
            found.setdefault(key, one.name)
    makers = {value: op.source for op in graph.ops for value in op.results}
    allowed |= {key for op in graph.ops for key in _read_whole(graph, op, plan, makers)}
    return {key: name for key, name in found.items() if all(key) and key not in allowed}


def left_whole(never: Mapping[Key, str], hlo_text: str, at_least: float) -> Iterator[Whole]:
    """The buffers of the program that are whole all the same, of at least so many bytes; each line once."""
    frames = sources(hlo_text)
    module = parse(hlo_text)
    seen: set[Key] = set()
    for computation, body in module.items():
        if "fused" in computation:
            continue  # what lives inside a fusion is never held
        for one in body:
            at = os.path.basename(source(one.text, frames))
            for shape in parts(one.shape):
                key = _key(at, dims(shape.strip()))
                if key in never and key not in seen and size(shape) >= at_least:
                    seen.add(key)
                    yield Whole(never[key], size(shape), at)


def _key(at: str, shape: tuple[int, ...]) -> Key:
    return at, tuple(sorted(extent for extent in shape if extent > 1))


def _is_whole(spec: Spec) -> bool:
    return not any(spec)


def _is_moved(plan: Plan, at: str, count: float) -> bool:
    """Whether a collective of this line holds all of the array at once, in its own width or in half of it."""
    return any(one.source == at and one.bytes >= count / 2 for one in plan.collectives)


def _read_whole(graph: Graph, op: Op, plan: Plan, makers: Mapping[int, str]) -> Iterator[Key]:
    """What this op is given whole, at its own line and at that of its maker. makers: value -> line."""
    for value, sites in zip(op.operands, op.uses, strict=True):
        specs = [spec for site in sites for spec in plan.sites.get(site, ())]
        if value is not None and any(map(_is_whole, specs)):
            for at in (op.source, makers.get(value, "")):
                yield _key(at, graph.values[value].shape)
