"""What sites turn into: the collectives of named schemes on two MLP blocks; constraints at every depth."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from hand_plans import Sites, close, found_in, hand_plan, kinds, pin_by_shape, walk
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import planner
from planner.apply import ShardedStep, apply
from planner.errors import PlanFileError
from planner.graph.graph import Site
from planner.hlo import mesh_axes
from planner.jax_compat import Traced, is_literal, open_jaxpr, trace_step
from planner.rewrite import rewrite
from planner.sharding.spec import Spec, replicated

B, T, D, F = 16, 8, 64, 128
UP, DOWN, ACTS, HIDDEN = (D, F), (F, D), (B, T, D), (B, T, F)


def mlp_step(state: Any, x_BTD: Any) -> Any:
    """Two residual MLP blocks, momentum SGD."""

    def loss(weights: Any) -> Any:
        h_BTD = x_BTD
        for up_DF, down_FD in weights:
            h_BTD = h_BTD + jax.nn.relu(h_BTD @ up_DF) @ down_FD
        return jnp.mean(jnp.square(h_BTD))

    value, grads = jax.value_and_grad(loss)(state["w"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
    return {"w": jax.tree.map(lambda w, m: w - 0.1 * m, state["w"], momentum), "m": momentum}, value


def mlp_arguments() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), 5)
    weights = [
        (jax.random.normal(keys[2 * n], UP) / 8, jax.random.normal(keys[2 * n + 1], DOWN) / 11)
        for n in (0, 1)
    ]
    return {"w": weights, "m": jax.tree.map(jnp.zeros_like, weights)}, jax.random.normal(keys[4], ACTS)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Where everything is kept, and in which spec each matmul ('up' or 'down') uses x, w and dy."""

    acts: Spec
    hidden: Spec
    up: Spec
    down: Spec
    uses: dict[tuple[str, str], Spec] = dataclasses.field(default_factory=dict)


ALL, XY = ("x", "y", "z"), ("x", "y")
BATCH: Spec = (ALL, (), ())
ROWS: Spec = (XY, (), ())

DATA = Scheme(BATCH, BATCH, replicated(2), replicated(2))
FSDP = Scheme(BATCH, BATCH, (ALL, ()), (ALL, ()), {("up", "w"): replicated(2), ("down", "w"): replicated(2)})
MEGATRON = Scheme(ROWS, (XY, (), ("z",)), ((), ("z",)), (("z",), ()))
SEQUENCE = dataclasses.replace(
    MEGATRON,
    acts=(XY, ("z",), ()),
    uses={("up", "x"): ROWS, ("down", "dy"): ROWS},
)


def cuboid() -> Scheme:
    """3-D tensor parallelism; the second matmul of a block swaps y and z."""

    def one(y: str, z: str) -> tuple[Spec, Spec, Spec, dict[str, Spec]]:
        uses: dict[str, Spec] = {
            "x": (("x",), (), (z,)),
            "w": ((z,), (y,)),
            "dy": (("x",), (), (y,)),
        }
        return (("x", y), (), (z,)), ((z,), (y, "x")), (("x", z), (), (y,)), uses

    acts, up, hidden, up_uses = one("y", "z")
    back, down, _, down_uses = one("z", "y")
    assert back == hidden
    uses = {("up", role): spec for role, spec in up_uses.items()}
    return Scheme(acts, hidden, up, down, uses | {("down", role): spec for role, spec in down_uses.items()})


def matmuls(jaxpr: Any, weights: dict[Any, str]) -> Iterator[tuple[int, str, tuple[str, str]]]:
    """(equation, 'up' or 'down', roles of its two operands) of every matmul, forward and backward."""
    for number, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.name != "dot_general":
            continue
        right = eqn.invars[1]
        (_, contracted), _ = eqn.params["dimension_numbers"]
        if right in weights:
            yield number, weights[right], ("x" if contracted == (0,) else "dy", "w")
        else:  # the gradient of a weight: dy and x, in either order, whose last dims are those of the weight
            transposed = any(
                e.primitive.name == "transpose" and e.invars[0] is eqn.outvars[0] for e in jaxpr.eqns
            )
            shape = eqn.outvars[0].aval.shape[:: -1 if transposed else 1]
            yield number, "up" if shape == UP else "down", ("dy", "x") if transposed else ("x", "dy")


def mlp_sites(traced: Traced, scheme: Scheme) -> Sites:
    """Every producer pinned, and every use that the scheme names."""
    jaxpr = open_jaxpr(traced.closed_jaxpr)
    kept = {ACTS: scheme.acts, HIDDEN: scheme.hidden, UP: scheme.up, DOWN: scheme.down}
    sites = pin_by_shape(traced.closed_jaxpr, kept)
    weights = {var: "up" if var.aval.shape == UP else "down" for var in jaxpr.invars[4:8]}
    for number, which, roles in matmuls(jaxpr, weights):
        if "w" not in roles:
            spec = scheme.up if which == "up" else scheme.down
            sites[Site("out", (), number, 0)] = (spec[::-1] if roles[0] == "dy" else spec,)
        for index, role in enumerate(roles):
            if (which, role) in scheme.uses:
                sites[Site("use", (), number, index)] = (scheme.uses[which, role],)
    return sites


def sharded_mlp(scheme: Scheme, mesh: Mesh) -> ShardedStep:
    traced = trace_step(mlp_step, mlp_arguments())
    by_shape = {ACTS: scheme.acts, UP: scheme.up, DOWN: scheme.down}
    paths = [f"{kind}.{block}.{part}" for kind in "mw" for block in (0, 1) for part in (0, 1)]
    specs = {path: by_shape[UP if path.endswith("0") else DOWN] for path in paths}
    plan = hand_plan(
        traced,
        mesh,
        mlp_sites(traced, scheme),
        {"x_BTD": scheme.acts} | {f"state.{path}": spec for path, spec in specs.items()},
        {f"result.0.{path}": spec for path, spec in specs.items()},
    )
    return apply(plan, traced, mesh)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        pytest.param(DATA, {"all-reduce": 4}, id="data"),
        pytest.param(FSDP, {"all-gather": 4, "reduce-scatter": 4}, id="fsdp"),
        pytest.param(MEGATRON, {"all-reduce": 3 + 4}, id="megatron"),
        pytest.param(SEQUENCE, {"all-gather": 4, "reduce-scatter": 3, "all-reduce": 4}, id="megatron_sp"),
        pytest.param(cuboid(), {"all-gather": 12, "reduce-scatter": 11}, id="tensor_3d"),
    ],
)
def test_a_scheme_compiles_to_its_collectives_and_computes_the_same(
    scheme: Scheme, expected: dict[str, int], cube: Mesh
):
    step = sharded_mlp(scheme, cube)
    assert kinds(found_in(step)) == expected
    state, batch = step.put(*mlp_arguments())
    wanted, x_BTD = mlp_arguments()
    reference = jax.jit(mlp_step)
    for _ in range(3):
        state, loss = step(state, batch)
        wanted, wanted_loss = reference(wanted, x_BTD)
    close((state, loss), (wanted, wanted_loss))


def test_the_cube_keeps_an_eighth_of_everything_and_communicates_along_single_axes(cube: Mesh):
    step = sharded_mlp(cuboid(), cube)
    state, batch = step.put(*mlp_arguments())
    for array in jax.tree.leaves((state, batch)):
        assert {shard.data.size * 8 for shard in array.addressable_shards} == {array.size}
    spanned = [mesh_axes(one.groups, (2, 2, 2), cube.axis_names) for one in found_in(step)]
    assert {axes for axes in spanned if axes is not None} == {("x",), ("y",), ("z",)}
    assert None not in spanned


def test_megatron_sums_activations_over_its_axis_and_gradients_over_the_rows(cube: Mesh):
    found = found_in(sharded_mlp(MEGATRON, cube))
    spanned = sorted((mesh_axes(one.groups, (2, 2, 2), cube.axis_names) or (), one.bytes) for one in found)
    rows = float(B // 4 * T * D * 4)
    assert spanned == [(("x", "y"), float(D * F // 2 * 4))] * 4 + [(("z",), rows)] * 3


ROW: Spec = (("x",), ())
WHOLE: Spec = ((), ())


def constraints(jaxpr: Any) -> list[tuple[int, Spec]]:
    """(depth, spec) of every constraint."""
    return [
        (len(path), tuple(() if dim is None else (dim,) for dim in eqn.params["sharding"].spec))
        for path, _, eqn in walk(jaxpr)
        if eqn.primitive.name == "sharding_constraint"
    ]


SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)
LAYERS = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)


def scanned(x: Any, w: Any) -> Any:
    def layer(h: Any, w_l: Any) -> tuple[Any, Any]:
        return jax.checkpoint(lambda h, w_l: jnp.tanh(h @ w_l))(h, w_l), h.sum()

    return jax.grad(lambda x, w: jax.lax.scan(layer, x, w)[0].sum(), argnums=1)(x, w)


def branched(x: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda x: jnp.sin(x) @ x, lambda x: jnp.cos(x), x)


def repeated(x: Any) -> Any:
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1] @ s[1])), (0, x))[1]


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return jnp.sin(x) * 2


doubled.defvjp(lambda x: (doubled(x), x), lambda x, g: (g * x,))


def custom(x: Any) -> Any:
    return jax.jit(lambda x: doubled(x) + jax.nn.relu(x))(x)


@pytest.mark.parametrize(
    ("fn", "depths"),
    [
        pytest.param(scanned, {0, 1, 2}, id="scan_remat"),
        pytest.param(branched, {0, 1}, id="cond"),
        pytest.param(repeated, {0, 1}, id="while"),
        pytest.param(custom, {0, 1}, id="jit_custom_vjp_jvp"),
    ],
)
def test_every_body_is_reached_and_computes_the_same(fn: Any, depths: set[int], line: Mesh):
    args = [jax.random.normal(jax.random.key(0), (8, 8))]
    if fn is scanned:
        args.append(jax.random.normal(jax.random.key(1), (3, 8, 8)))
    traced = trace_step(fn, args)
    sites = pin_by_shape(traced.closed_jaxpr, {(8, 8): ROW, (3, 8, 8): ((), ("x",), ())})
    assert {depth for depth, _ in constraints(rewrite(traced.closed_jaxpr, sites, line))} == depths
    step = apply(hand_plan(traced, line, sites), traced, line)
    close(step(*args), jax.jit(fn)(*args))


def test_a_layer_gathers_its_weight_inside_the_loop(line: Mesh):
    traced = trace_step(scanned, [SQUARE, LAYERS])
    stored: Spec = ((), ("x",), ())
    sites = pin_by_shape(traced.closed_jaxpr, {(8, 8): ROW, (3, 8, 8): stored})
    for path, number, eqn in walk(traced.closed_jaxpr):
        if path and eqn.primitive.name == "dot_general":
            sites[Site("use", path, number, 1)] = (WHOLE,)
    plan = hand_plan(traced, line, sites, {"x": ROW, "w": stored}, {"result": stored})
    gathers = [one for one in found_in(apply(plan, traced, line)) if one.kind == "all-gather"]
    assert gathers
    assert {(one.bytes, one.times) for one in gathers} == {(8 * 8 * 4.0, 3.0)}


def test_two_uses_in_one_spec_share_one_constraint(line: Mesh):
    traced = trace_step(lambda x: (jnp.sin(x), jnp.cos(x), jnp.tan(x)), [SQUARE])
    sites: Sites = {
        Site("in", (), -1, 0): (ROW,),
        Site("use", (), 0, 0): (WHOLE,),
        Site("use", (), 1, 0): (WHOLE,),
        Site("use", (), 2, 0): (ROW,),
        Site("ret", (), -1, 0): (ROW, WHOLE),
    }
    new = open_jaxpr(rewrite(traced.closed_jaxpr, sites, line))
    assert constraints(new) == [(0, ROW), (0, WHOLE), (0, ROW), (0, WHOLE)]
    sin, cos, tan = (eqn for eqn in new.eqns if eqn.primitive.name in ("sin", "cos", "tan"))
    assert sin.invars[0] is cos.invars[0]
    assert tan.invars[0] is new.eqns[0].outvars[0]


@pytest.mark.parametrize("times", [1, 2])
def test_the_gradient_of_a_weight_is_laid_out_as_the_weight(line: Mesh, times: int):
    """A matmul makes it transposed. What has another shape stays as it lies, and everything where gradients
    are added up: those of a matrix that is used twice."""

    def step(w: Any, v: Any, square: Any, x: Any) -> Any:
        def loss(w: Any, v: Any, square: Any) -> Any:
            turned = x
            for _ in range(times):
                turned = jax.jit(jnp.matmul)(turned, square)
            return jnp.sin(turned @ w @ v).sum()

        return jax.grad(loss, argnums=(0, 1, 2))(w, v, square)

    shapes = (8, 4), (4, 6), (8, 8), (16, 8)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    traced = trace_step(step, args)

    def laid(weights: Any) -> list[tuple[int, ...]]:
        new = open_jaxpr(rewrite(traced.closed_jaxpr, {}, line, weights))
        return sorted(e.outvars[0].aval.shape for e in new.eqns if e.primitive.name == "layout_constraint")

    assert laid(()) == laid({(6, 4), (16, 8)}) == []
    assert laid({(8, 4)}) == [(8, 4)]
    assert laid({(8, 4), (4, 6), (8, 8)}) == ([(4, 6), (8, 4), (8, 8)] if times == 1 else [])
    arrays = [jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32) for shape in shapes]
    new = jex.jaxpr_as_fun(rewrite(traced.closed_jaxpr, {}, line, {(8, 4), (4, 6)}))
    for mine, theirs in zip(new(*arrays), step(*arrays), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("start", "finish", "added", "parts"),
    [
        (WHOLE, ROW, False, [(1, 8)]),
        (WHOLE, ROW[::-1], False, [(8, 1)]),
        (WHOLE, WHOLE, False, []),
        (ROW, ROW, False, []),
        (WHOLE, ROW, True, []),
    ],
)
def test_the_parts_of_a_scatters_sum_are_laid_out_in_rows(
    line: Mesh, start: Spec, finish: Spec, added: bool, parts: list[tuple[int, ...]]
):
    """Each device's own, where arrays lie in tiles and the sum is scattered over devices, and is not added to
    one that is to be finished with it."""

    def step(table: Any, ids: Any, x: Any) -> Any:
        def loss(table: Any) -> Any:
            return (jnp.sin(table[ids]) * x).sum() + (jnp.cos(table).sum() if added else 0.0)

        return jax.grad(loss)(table)

    draw = np.random.default_rng(0)
    arrays = [draw.normal(size=(8, 8)), draw.integers(0, 8, 16), draw.normal(size=(16, 8))]
    arrays = [jnp.asarray(a, jnp.int32 if a.dtype == np.int64 else jnp.float32) for a in arrays]
    traced = trace_step(step, arrays)
    (place,) = ((p, n) for p, n, eqn in walk(traced.closed_jaxpr) if eqn.primitive.name == "scatter-add")
    sites: Sites = {Site("use", *place, 0): (start,), Site("out", *place, 0): (finish,)}

    def laid(new: Any) -> list[tuple[int, ...]]:
        on_parts = [e for e in open_jaxpr(new).eqns if e.primitive.name == "shard_map"]
        inside = [e for one in on_parts for e in open_jaxpr(one.params["jaxpr"]).eqns]
        assert all(e.params["layout"].major_to_minor == (0, 1) for e in inside)
        return [e.outvars[0].aval.shape for e in inside]

    assert laid(rewrite(traced.closed_jaxpr, sites, line)) == []
    new = rewrite(traced.closed_jaxpr, sites, line, tiled=True)
    assert laid(new) == parts
    (found,) = jax.jit(jex.jaxpr_as_fun(new))(*arrays)
    close(found, step(*arrays))


def test_a_body_used_twice_may_be_planned_twice(line: Mesh):
    inner = jax.jit(jnp.sin)
    traced = trace_step(lambda x: inner(inner(x)), [SQUARE])
    first, second = ((number, "jaxpr", None) for number in (0, 1))
    new = rewrite(
        traced.closed_jaxpr,
        {Site("out", (first,), 0, 0): (ROW,), Site("out", (second,), 0, 0): (WHOLE,)},
        line,
    )
    assert constraints(new) == [(0, ROW), (0, WHOLE)]


def test_uses_in_different_jits_share_one_constraint_and_keep_their_names_and_lines(line: Mesh):
    """As those of a forward and a backward pass: only so are they sure to share a gather."""

    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w)

    traced = trace_step(lambda w, x: jax.grad(lambda w: jax.jit(layer)(w, x).sum())(w), [SQUARE, SQUARE])
    sites = pin_by_shape(traced.closed_jaxpr, {(8, 8): ROW})
    dots = [(path, n) for path, n, eqn in walk(traced.closed_jaxpr) if eqn.primitive.name == "dot_general"]
    assert [len(path) for path, _ in dots] == [1, 1]
    sites |= {
        Site("use", dots[0][0], dots[0][1], 0): (WHOLE,),
        Site("use", dots[1][0], dots[1][1], 1): (WHOLE,),
    }
    new = open_jaxpr(rewrite(traced.closed_jaxpr, sites, line))
    assert all(eqn.primitive.name != "jit" for eqn in new.eqns)
    forward, backward = (eqn for eqn in new.eqns if eqn.primitive.name == "dot_general")
    assert forward.invars[0] is backward.invars[1]
    stacks = [str(eqn.source_info.name_stack) for eqn in (forward, backward)]
    assert stacks == ["jvp(jit(layer))", "transpose(jvp(jit(layer)))"]
    step = apply(hand_plan(traced, line, sites), traced, line)
    args = [jax.random.normal(jax.random.key(n), (8, 8)) for n in (0, 1)]
    close(step(*args), jax.jit(traced.fn)(*args))
    assert 'op_name="jit(<lambda>)/jvp(jit(layer))' in step.lower().compile().as_text()


def test_a_jit_that_holds_an_array_stays_a_jit(line: Mesh):
    table = jnp.arange(8.0)
    traced = trace_step(lambda x: jax.jit(lambda x: jnp.sin(x) * table)(x), [SQUARE])
    sites = pin_by_shape(traced.closed_jaxpr, {(8, 8): ROW})
    assert {depth for depth, _ in constraints(rewrite(traced.closed_jaxpr, sites, line))} == {0, 1}
    step = apply(hand_plan(traced, line, sites), traced, line)
    close(step(jnp.ones((8, 8))), jnp.sin(jnp.ones((8, 8))) * table)


def test_constraints_of_the_user_on_another_mesh_are_replaced(line: Mesh, grid: Mesh):
    def fn(x: Any) -> Any:
        y = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(line, PartitionSpec("x")))
        placed = jax.jit(jnp.cos, in_shardings=NamedSharding(line, PartitionSpec(None, "x")))
        return placed(y) @ jax.lax.with_sharding_constraint(y, NamedSharding(line, PartitionSpec(None, "x")))

    traced = trace_step(fn, [SQUARE])
    split: Spec = (("x",), ("y",))
    sites = pin_by_shape(traced.closed_jaxpr, {(8, 8): split})
    new = rewrite(traced.closed_jaxpr, sites, grid)
    assert {spec for _, spec in constraints(new)} == {split}
    x = jax.random.normal(jax.random.key(0), (8, 8))
    step = apply(hand_plan(traced, grid, sites, {"x": split}, {"result": split}), traced, grid)
    close(step(x), jnp.cos(jnp.sin(x)) @ jnp.sin(x))


def test_a_kernel_of_one_by_one_is_gathered_once_for_both_passes(line: Mesh):
    def fn(x: Any, kernel: Any) -> Any:
        layout = jax.lax.conv_dimension_numbers(x.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
        made = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
        return jnp.sum(made**2)

    args = jax.ShapeDtypeStruct((8, 4, 4, 16), "float32"), jax.ShapeDtypeStruct((1, 1, 16, 16), "float32")
    step = jax.grad(fn)
    plan = planner.plan(
        step, *args, machine="cpu:8", mesh={"x": 8}, pins={"kernel": PartitionSpec(None, None, "x")}
    )
    assert [c.value for c in plan.collectives if c.kind == "all_gather"] == ["kernel"]
    assert planner.verify(plan, step, *args).wire.excess == 0
    x = jax.random.normal(jax.random.key(0), args[0].shape)
    kernel = jax.random.normal(jax.random.key(1), args[1].shape)
    close(planner.plan_and_shard(step, *args, plan=plan)(x, kernel), step(x, kernel))


def test_typed_keys_literals_and_dropped_results_are_left_alone(line: Mesh):
    def fn(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        return x * 2.0 + jax.random.normal(first, x.shape), second

    args = (jax.random.key(3), jnp.ones((8, 8)))
    traced = trace_step(fn, args)
    sites = {
        Site("out", path, number, index): (((),) * (len(var.aval.shape) + 1),)
        for path, number, eqn in walk(traced.closed_jaxpr)
        for index, var in enumerate(eqn.outvars)
        if "key" in str(var.aval.dtype)
    }
    literals = {
        Site("use", path, number, index): ((),)
        for path, number, eqn in walk(traced.closed_jaxpr)
        for index, atom in enumerate(eqn.invars)
        if is_literal(atom)
    }
    assert sites
    assert literals
    assert constraints(rewrite(traced.closed_jaxpr, {**sites, **literals}, line)) == []
    step = apply(hand_plan(traced, line, sites), traced, line)
    got, wanted = step(*args), jax.jit(fn)(*args)
    close(got[0], wanted[0])
    assert jnp.array_equal(jax.random.key_data(got[1]), jax.random.key_data(wanted[1]))


@pytest.mark.parametrize(
    ("site", "spec", "message"),
    [
        (
            Site("out", (), 9, 0),
            ROW,
            "The plan needs the place result 0 of equation 9 in top, which this step does not have. "
            "Plan again for this step.",
        ),
        (
            Site("in", ((0, "jaxpr", None),), -1, 0),
            ROW,
            "The plan needs the nested program 0.jaxpr, which this step does not have. "
            "Plan again for this step.",
        ),
        (
            Site("use", (), 0, 0),
            (("x",),),
            "The plan needs an array for P(x) at operand 0 of equation 0 in top (its shape is (8, 8)), "
            "which this step does not have. Plan again for this step.",
        ),
    ],
)
def test_sites_of_another_step_are_named(site: Site, spec: Spec, message: str, line: Mesh):
    with pytest.raises(PlanFileError) as caught:
        rewrite(trace_step(jnp.sin, [SQUARE]).closed_jaxpr, {site: (spec,)}, line)
    assert str(caught.value) == message
