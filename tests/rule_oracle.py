"""Rules against what the primitives do: factors of a real equation are cut in two.

A device that holds one half of a *free* factor must get its half of the results right whatever the other half
of the operands holds, so that half is overwritten. Halves of a *reduced* factor must add up to the whole, so
the other half is blanked with what the op's sum (or maximum, product, ...) leaves alone.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, Primitive

from planner.graph.notation import show
from planner.graph.rule import Dims, Rule
from planner.rules import rule_of

CONTAINERS = ("jit", "custom_jvp_call", "custom_vjp_call", "remat2", "closed_call", "pjit")
COMBINE = {
    "reduce_and": (np.logical_and, True),
    "reduce_max": (np.maximum, -np.inf),
    "reduce_min": (np.minimum, np.inf),
    "reduce_or": (np.logical_or, False),
    "reduce_prod": (np.multiply, 1),
    "reduce_xor": (np.bitwise_xor, 0),
    "scatter-max": (np.maximum, -np.inf),
    "scatter-min": (np.minimum, np.inf),
    "scatter-mul": (np.multiply, 1),
}


@dataclasses.dataclass(frozen=True)
class Equation:
    """One primitive applied to real values."""

    primitive: Primitive
    params: dict
    operands: list
    results: list

    @property
    def name(self) -> str:
        return self.primitive.name

    def rule(self) -> Rule | None:
        return rule_of(self.name, self.params, self.operands, self.results)

    def run(self, operands: list) -> list:
        results = self.primitive.bind(*operands, **self.params)
        return list(results) if self.primitive.multiple_results else [results]


def equations(function, *args) -> Iterator[Equation]:
    """All equations of a function with the values they see; containers are entered."""
    closed = jax.make_jaxpr(function)(*args)
    yield from _walk(closed, jax.tree.leaves(args), [])


def _walk(closed, args, returned: list) -> Iterator[Equation]:
    jaxpr = getattr(closed, "jaxpr", closed)
    consts = getattr(closed, "consts", ())
    env = dict(zip([*getattr(jaxpr, "constvars", ()), *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom):
        return jnp.asarray(atom.val) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
        if eqn.primitive.name in CONTAINERS:
            results: list = []
            yield from _walk(inner, operands, results)
        else:
            bare = Equation(eqn.primitive, dict(eqn.params), operands, [])
            results = bare.run(operands)
            yield dataclasses.replace(bare, results=results)
        env.update(zip(eqn.outvars, results, strict=True))
    returned.extend(read(atom) for atom in jaxpr.outvars)


def primitives(function, *args) -> set[str]:
    """Names of all primitives of a function's jaxpr, containers entered."""
    found: set[str] = set()

    def enter(closed):
        for eqn in getattr(closed, "jaxpr", closed).eqns:
            inner = eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
            if eqn.primitive.name in CONTAINERS:
                enter(inner)
            else:
                found.add(eqn.primitive.name)

    enter(jax.make_jaxpr(function)(*args))
    return found


def half_of(extent: int, half: int) -> range:
    return range(extent // 2) if half == 0 else range(extent // 2, extent)


def walked(dims: Dims, factor: str) -> int | None:
    """The dim a factor walks."""
    return next((d for d, dim in enumerate(dims) if factor in dim), None)


def numbers_of(dim: tuple[str, ...], factor: str, sizes) -> np.ndarray:
    """For each position of a (merged) dim, the value of one of its factors."""
    grid = np.indices([sizes[f] for f in dim])
    return grid[dim.index(factor)].ravel()


def halo_of(rule: Rule, place: int, factor: str) -> tuple[int, int]:
    """Rows before and after it that a part of an operand needs along the dim that a factor walks."""
    axis = walked(rule.operands[place], factor)
    found = [(h.before, h.after) for h in rule.halos if (h.operand, h.dim) == (place, axis)]
    return found[0] if found else (0, 0)


def held(dim: tuple[str, ...], factor: str, sizes, half: int, halo: tuple[int, int]) -> np.ndarray:
    """For each position of a dim, whether a half of a factor covers it, or its halo does."""
    covered = np.isin(numbers_of(dim, factor, sizes), half_of(sizes[factor], half))
    rows = np.flatnonzero(covered)
    if any(halo):  # a halo is of a major factor, whose halves are contiguous
        covered[max(0, rows[0] - halo[0]) : rows[-1] + 1 + halo[1]] = True
    return covered


def kept(value, dims: Dims, factor: str, sizes, half: int, halo=(0, 0)) -> np.ndarray | None:
    """Mask of the positions that a half of a factor covers, ready to broadcast; None if it is not there."""
    axis = walked(dims, factor)
    if axis is None:
        return None
    mask = held(dims[axis], factor, sizes, half, halo)
    return mask.reshape([-1 if d == axis else 1 for d in range(len(value.shape))])


def overwritten(value, dims: Dims, factor: str, sizes, half: int, halo=(0, 0)):
    """The value with the other half of a factor, but for the halo, replaced by copies from this half."""
    axis = walked(dims, factor)
    if axis is None:
        return value
    grid = list(np.indices([sizes[f] for f in dims[axis]]))
    place, ours = dims[axis].index(factor), half_of(sizes[factor], half)
    mine = np.isin(grid[place], ours)
    grid[place] = np.where(mine, grid[place], ours.start + grid[place] % len(ours))
    source = np.ravel_multi_index(grid, [sizes[f] for f in dims[axis]]).ravel()
    source = np.where(held(dims[axis], factor, sizes, half, halo), np.arange(len(source)), source)
    return value[(slice(None),) * axis + (source,)]


def blank(name: str, dtype):
    """What the op's combination leaves alone."""
    _, neutral = COMBINE.get(name, (np.add, 0))
    if not np.isinf(neutral) or jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(neutral, dtype)
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.max if neutral > 0 else info.min, dtype)


def blanked(equation: Equation, operands: list, rule: Rule, factor: str, half: int) -> list:
    """Operands of a device that holds one half of a reduced factor."""
    name, out = equation.name, list(operands)
    blankable = {"gather": [0]}.get(name, [2] if name.startswith("scatter") else range(len(operands)))
    for place in blankable:
        halo = halo_of(rule, place, factor)
        mask = kept(out[place], rule.operands[place], factor, rule.sizes, half, halo)
        if mask is not None:
            out[place] = jnp.where(mask, out[place], blank(name, out[place].dtype))
    if name.startswith("scatter") and half:  # the array itself counts once
        out[0] = jnp.full_like(out[0], blank(name, out[0].dtype))
    return out


def plain(value) -> np.ndarray:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def assert_splits(equation: Equation, rule: Rule, factors: tuple[str, ...]) -> None:
    """Each device's results are the whole ones on its part, once reduced factors are combined."""
    free = [f for f in factors if f not in rule.reduced]
    reduced = [f for f in factors if f in rule.reduced]
    combine, _ = COMBINE.get(equation.name, (np.add, 0))
    for free_halves in itertools.product((0, 1), repeat=len(free)):
        total = None
        for halves in itertools.product((0, 1), repeat=len(reduced)):
            parts = equation.operands
            for factor, half in zip(free, free_halves, strict=True):
                parts = [
                    overwritten(v, d, factor, rule.sizes, half, halo_of(rule, place, factor))
                    for place, (v, d) in enumerate(zip(parts, rule.operands, strict=True))
                ]
            for factor, half in zip(reduced, halves, strict=True):
                parts = blanked(equation, parts, rule, factor, half)
            partial = [plain(v) for v in equation.run(parts)]
            total = partial if total is None else [combine(a, b) for a, b in zip(total, partial, strict=True)]
        assert total is not None
        for value, dims, got in zip(equation.results, rule.results, total, strict=True):
            want = plain(value)
            mask = np.ones(value.shape, bool)
            for factor, half in zip(free, free_halves, strict=True):
                part = kept(value, dims, factor, rule.sizes, half)
                mask = mask if part is None else mask & part
            np.testing.assert_allclose(
                got[mask],
                want[mask],
                rtol=2e-5,
                atol=2e-5,
                err_msg=f"{equation.name}: {show(rule)}, {factors}",
            )
