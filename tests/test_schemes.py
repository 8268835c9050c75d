"""The named schemes on a chain of linears: what is planned is what XLA compiles, 3-D parallelism has the
collectives of its paper, and the sides of the cuboid differ where that is cheaper."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from steps import MESHES

import planner
from planner.hlo import Found, collectives
from planner.plans import Plan
from planner.sharding.named import SCHEMES
from planner.sharding.spec import pieces, show

BLOCKS = 2
LINEARS = 2 * BLOCKS


def step(state: Any, x: Any) -> Any:
    """Residual blocks of two linears, trained by SGD with momentum."""

    def loss_of(weights: Any) -> Any:
        h = x
        for up, down in weights:
            h = h + jax.nn.relu(h @ up) @ down
        return jnp.mean(jnp.square(h.astype(jnp.float32)))

    loss, grads = jax.value_and_grad(loss_of)(state["w"])
    m = jax.tree.map(lambda m, g: (0.9 * m + g).astype(m.dtype), state["m"], grads)
    return {"w": jax.tree.map(lambda w, m: (w - 0.1 * m).astype(w.dtype), state["w"], m), "m": m}, loss


def arguments(rows: tuple[int, ...], width: int, hidden: int, dtype: Any = jnp.float32) -> tuple[Any, Any]:
    """The state and the input of the chain, as shapes."""
    block = jax.ShapeDtypeStruct((width, hidden), dtype), jax.ShapeDtypeStruct((hidden, width), dtype)
    return {"w": [block] * BLOCKS, "m": [block] * BLOCKS}, jax.ShapeDtypeStruct((*rows, width), dtype)


SMALL = arguments((16, 128), 512, 2048)


def compiled(plan: Plan) -> tuple[str, tuple[Found, ...]]:
    """The program that XLA makes of a plan for SMALL, and its collectives, those of scalars left out."""
    text = planner.plan_and_shard(step, *SMALL, plan=plan).lower().compile().as_text()
    return text, tuple(found for found in collectives(text) if found.bytes > 64)


def counts(kinds: Iterable[str]) -> Mapping[str, int]:
    """How many of each kind, as a CPU spells them: for a reduce-scatter it writes an all-reduce."""
    spelled = (kind.replace("_", "-").replace("reduce-scatter", "all-reduce") for kind in kinds)
    return collections.Counter(kind.replace("collective-permute", "permute") for kind in spelled)


@pytest.fixture(scope="module")
def cube_plan() -> Plan:
    """3-D parallelism on 2 x 2 x 2 devices, by the prices of a TPU, where scattered sums are cheaper than
    whole ones; to be compiled for as many CPU devices."""
    cube, inside = MESHES["tensor_3d"], ["tensor_3d"]
    plan = planner.plan(step, *SMALL, machine="tpu_v5p:2x2x2", mesh=cube, schemes=inside)
    return dataclasses.replace(plan, machine="cpu:8")


@pytest.mark.parametrize("scheme", [*SCHEMES, "chosen"])
def test_what_is_planned_is_what_is_compiled(scheme: str):
    inside = {} if scheme == "chosen" else {"mesh": MESHES[scheme], "schemes": [scheme]}
    plan = planner.plan(step, *SMALL, machine="cpu:8", **inside)
    planned = [one for one in plan.collectives if one.bytes > 64]
    _, found = compiled(plan)
    assert all(one.times == 1 for one in (*planned, *found))
    assert counts(one.kind for one in found) == counts(one.kind for one in planned)
    wire = sum(one.wire_bytes for one in planned)
    assert sum(one.wire_bytes for one in found) == pytest.approx(wire, rel=0.01)


def test_3d_parallelism_has_the_collectives_of_its_paper(cube_plan: Plan):
    """Bian et al. 2021 (arXiv 2105.14450): each of the three products of a linear wants two operands gathered
    and its sums scattered. A gathered operand serves two products, and nobody wants the input's gradient: of
    four linears that leaves 4 x 3 gathers and 4 x 3 - 1 sums."""
    planned = collections.Counter(one.kind for one in cube_plan.collectives if one.bytes > 64)
    assert planned == {"all_gather": 12, "reduce_scatter": 11}
    _, found = compiled(cube_plan)
    assert counts(one.kind for one in found) == {"all-gather": 12, "all-reduce": 11}
    assert all(one.group_size == 2 for one in found)
    assert all(one.sliced for one in found if one.reduces)


def test_3d_parallelism_keeps_an_eighth_of_everything(cube_plan: Plan):
    kept = {leaf.path: show(leaf.spec) for leaf in cube_plan.arguments}
    # x, which is gathered for use, is the minor axis. The other two swap from one linear to the next, and may
    # change their names.
    first, second = "P(z, (y,x))", "P(y, (z,x))"
    if kept["state.w.0.0"] == second:
        first, second = second, first
    for kind in "wm":
        for block in range(BLOCKS):
            assert (kept[f"state.{kind}.{block}.0"], kept[f"state.{kind}.{block}.1"]) == (first, second)
    assert kept["x"] == ("P((x,y), -, z)" if first == "P(z, (y,x))" else "P((x,z), -, y)")
    made = [specs[-1] for site, specs in cube_plan.sites.items() if site.kind in ("in", "out")]
    arrays = [spec for spec in made if len(spec) > 1]
    assert len(arrays) > 3 * LINEARS
    assert {pieces(spec, cube_plan.mesh) for spec in arrays} == {8}
    text, _ = compiled(cube_plan)
    layout = re.search(r"entry_computation_layout=\{\((.*?)\)->\((.*?)\)\}", text.splitlines()[0])
    assert layout
    parts = [
        [int(d) for d in re.findall(r"\d+", dims)] for dims in re.findall(r"\bf32\[([\d,]*)\]", layout[0])
    ]
    whole = [leaf.shape for leaf in (*cube_plan.arguments, *cube_plan.results)]
    assert [math.prod(part) for part in parts] == [-(-math.prod(shape) // 8) for shape in whole]


@pytest.mark.parametrize("dropped", ["one", "all"])
def test_without_its_sites_a_plan_is_not_what_runs(cube_plan: Plan, dropped: str):
    """The specs of arguments and results alone make XLA find a way of its own."""
    uses = [site for site in cube_plan.sites if site.kind == "use"]
    first = min(uses, key=lambda site: (len(site.path), site.eqn, site.index))
    sites = {site: specs for site, specs in cube_plan.sites.items() if dropped == "one" and site != first}
    _, wanted = compiled(cube_plan)
    _, found = compiled(dataclasses.replace(cube_plan, sites=sites))
    assert counts(one.kind for one in found) != counts(one.kind for one in wanted)


def words_of_3d(rows: float, width: float, x: int, y: int, z: int) -> float:
    """Words that each device sends in a step of LINEARS square linears.

    Of each, forward: an operand gathered over y, the weight over x, the result scattered over z; backward the
    same of the gradients. The next linear swaps y and z. The first needs no gradient of its input.
    """
    over_y = rows * width / (x * z) * (1 - 1 / y)
    over_z = rows * width / (x * y) * (1 - 1 / z)
    over_x = width * width / (y * z) * (1 - 1 / x)
    return LINEARS * 2 * (over_x + over_y + over_z) - max(over_y, over_z)


WIDE = arguments((32_768,), 8192, 8192, jnp.bfloat16)  # four times as many tokens as features
PODS = "tpu_v5p:4x4x4"


def test_a_cuboid_with_unequal_sides_beats_the_cube():
    plans = {
        sides: planner.plan(
            step, *WIDE, machine=PODS, mesh=dict(zip("xyz", sides, strict=True)), schemes=["tensor_3d"]
        )
        for sides in [(4, 4, 4), (8, 4, 2), (2, 4, 8)]
    }
    for sides, plan in plans.items():
        # bfloat16 has two bytes; the loss, a scalar, is not counted.
        assert plan.wire_bytes == pytest.approx(2 * words_of_3d(32_768, 8192, *sides), rel=1e-6)
    cube, cuboid, slab = plans.values()
    assert cuboid.wire_bytes < 0.85 * cube.wire_bytes
    assert cuboid.step_seconds < cube.step_seconds < slab.step_seconds


def test_the_open_search_mixes_what_no_scheme_does():
    plan = planner.plan(step, *WIDE, machine=PODS)
    rows = {row.scheme: row for row in plan.schemes}
    assert dict(rows["tensor_3d"].mesh) == {"x": 4, "y": 4, "z": 4}
    assert len(plan.mesh) > 1
    for scheme in SCHEMES:
        assert plan.step_seconds < rows[scheme].step_seconds
    for scheme in ("data", "tensor_1d", "tensor_3d"):
        assert plan.wire_bytes < rows[scheme].wire_bytes
    assert plan.stopped == "exact"
    assert plan.summed_seconds == pytest.approx(plan.lower_bound_seconds, rel=1e-9)
