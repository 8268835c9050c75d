"""Golden rules as text, one row each; FLOPs; what is fused; and heavy ops run on real shards."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from rule_oracle import equations

from planner.graph.notation import parse, show
from planner.rules import ROOMS, TABLE, flops_of, is_light, rule_of
from planner.rules.entry import Shaped


def ones(*shape: int):
    return jnp.ones(shape)


def last_conv(layout, strides=(1, 1), padding="SAME", **options):
    return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=layout, **options)


NHWC = ("NHWC", "HWIO", "NHWC")


def strided(stride: int):
    return last_conv(NHWC, (stride, stride))


def pool(side: int):
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, side, side, 1), (1, 2, 2, 1), "SAME")


TOKENS = jnp.zeros((2, 3), int)
GOLDEN = [
    ("dot_general", "i k, k j -> i j", jnp.matmul, ones(4, 6), ones(6, 8)),
    ("dot_general", "i1 i2 k, k j -> i1 i2 j", jnp.matmul, ones(2, 4, 6), ones(6, 8)),
    ("dot_general", "b i k, b k j -> b i j", jnp.matmul, ones(2, 4, 6), ones(2, 6, 8)),
    (
        "dot_general",
        "k1 k2 i, k1 k2 j -> i j",
        lambda x, y: jnp.einsum("btd,bte->de", x, y),
        ones(2, 4, 6),
        ones(2, 4, 8),
    ),
    ("mul", "a b, -> a b", lambda x: x * 2.0, ones(4, 6)),
    ("add", "a b, _ b -> a b", lambda x, y: x + y, ones(4, 6), ones(1, 6)),
    ("reduce_sum", "a b c -> b", lambda x: x.sum((0, 2)), ones(4, 6, 8)),
    ("argmax", "a b! -> a", lambda x: x.argmax(1), ones(4, 6)),
    ("broadcast_in_dim", "a c -> a b c", lambda x: lax.broadcast_in_dim(x, (4, 5, 6), (0, 2)), ones(4, 6)),
    ("transpose", "a b c -> c a b", lambda x: x.transpose(2, 0, 1), ones(4, 6, 8)),
    ("reshape", "a b c -> a (b c)", lambda x: x.reshape(2, 24), ones(2, 4, 6)),
    ("reshape", "a (b c d) -> a b c d", lambda x: x.reshape(2, 3, 4, 2), ones(2, 24)),
    ("reshape", "a _ b -> a b", lambda x: lax.reshape(x, (4, 6)), ones(4, 1, 6)),
    ("reshape", "a! b! -> c! d!", lambda x: x.reshape(8, 3), ones(6, 4)),
    ("reshape", "a (b c) -> (a b) c", lambda x: x.reshape(8, 3), ones(4, 6)),
    ("reshape", "b a -> (a b)", lambda x: lax.reshape(x, (24,), dimensions=(1, 0)), ones(4, 6)),
    ("gather", "v1 d2, b1 b2 _ -> b1 b2 d2", lambda t: t.at[TOKENS].get(mode="clip"), ones(10, 4)),
    (
        "gather",
        "b1 b2 v3, b1 b2 _ _ -> b1 b2 _",
        lambda x: jnp.take_along_axis(x, TOKENS[..., None], 2),
        ones(2, 3, 10),
    ),
    ("gather", "v1 v2 d3, b1 p! -> b1 d3", lambda x: x[TOKENS[0], TOKENS[1]], ones(4, 6, 8)),
    (
        "gather",
        "s1! d2, b1 p! -> b1 t1! d2",
        jax.vmap(lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 6)), (None, 0)),
        ones(4, 6),
        TOKENS[0],
    ),
    (
        "scatter-add",
        "v1 d2, b1 b2 _, b1 b2 d2 -> v1 d2",
        lambda t, u: t.at[TOKENS].add(u),
        ones(10, 4),
        ones(2, 3, 4),
    ),
    (
        "scatter-add",
        "b1 v2, b1 b2 _, b1 b2 -> b1 v2",
        jax.grad(lambda x: jnp.take_along_axis(x, TOKENS, 1).sum()),
        ones(2, 10),
    ),
    (
        "scatter",
        "v1 d2, b1! b2! _, b1! b2! d2 -> v1 d2",
        lambda t, u: t.at[TOKENS].set(u),
        ones(10, 4),
        ones(2, 3, 4),
    ),
    (
        "dynamic_slice",
        "a! b, , -> c! b",
        lambda x: lax.dynamic_slice(x, (jnp.array(1), jnp.array(0)), (2, 6)),
        ones(4, 6),
    ),
    (
        "dynamic_update_slice",
        "a b, _ b, , -> a b",
        lambda x, u: lax.dynamic_update_slice(x, u, (jnp.array(1), jnp.array(0))),
        ones(4, 6),
        ones(1, 6),
    ),
    (
        "dynamic_update_slice",
        "a! b, c! b, , -> a! b",
        lambda x, u: lax.dynamic_update_slice(x, u, (jnp.array(1), jnp.array(0))),
        ones(4, 6),
        ones(2, 6),
    ),
    ("cumsum", "a! b -> a! b", lambda x: jnp.cumsum(x, 0), ones(4, 6)),
    ("sort", "a b! -> a b!", jnp.sort, ones(4, 6)),
    ("top_k", "a b! -> a z!, a z!", lambda x: lax.top_k(x, 2), ones(4, 6)),
    ("concatenate", "a c!, a d! -> a e!", lambda x: jnp.concatenate([x, x[:, :2]], 1), ones(4, 6)),
    ("split", "a c! -> a d!, a e!", lambda x: jnp.split(x, [2], 1), ones(4, 6)),
    ("pad", "a b!, -> a d!", lambda x: jnp.pad(x, ((0, 0), (1, 0))), ones(4, 6)),
    ("slice", "a b! -> a d!", lambda x: x[:, 1:3], ones(4, 6)),
    ("rev", "a! b -> a! b", lambda x: x[::-1], ones(4, 6)),
    ("tile", "a b -> (c a) b", lambda x: jnp.tile(x, (3, 1)), ones(4, 6)),
    ("iota", "-> a b", lambda: lax.broadcasted_iota(int, (4, 6), 0)),
    ("random_bits", "-> a b", lambda: jax.random.bits(jax.random.key(0), (4, 6))),
    ("random_bits", "-> a! b!", lambda: jax.random.bits(jax.random.key(0, impl="rbg"), (4, 6))),
    ("random_wrap", "a! ->", jax.random.wrap_key_data, jnp.zeros(2, jnp.uint32)),
    ("fft", "a c! -> a e!", jnp.fft.rfft, ones(4, 6)),
    ("cholesky", "a b! c! -> a d! e!", jnp.linalg.cholesky, jnp.stack([jnp.eye(4)] * 2)),
    (
        "conv_general_dilated",
        "n x1~1+1 x2~1+1 c, w1! w2! c o -> n x1 x2 o",
        last_conv(NHWC),
        ones(2, 8, 8, 4),
        ones(3, 3, 4, 6),
    ),
    (
        "conv_general_dilated",
        "n (x1~2+3 s1) (x2~2+3 s2) c, w1! w2! c o -> n x1 x2 o",
        strided(2),
        ones(2, 8, 8, 4),
        ones(7, 7, 4, 6),
    ),
    (
        "conv_general_dilated",
        "n x1~1+0 x2~1+0 c, w1! w2! o c -> n (x1 s1) (x2 s2) o",
        jax.grad(lambda x, w: (strided(2)(x, w) ** 2).sum()),
        ones(2, 8, 8, 4),
        ones(3, 3, 4, 6),
    ),
    (
        "conv_general_dilated",
        "c (x1~0+1 s1) (x2~0+1 s2) n, c x1 x2 o -> y1! y2! n o",
        jax.grad(lambda w, x: (strided(2)(x, w) ** 2).sum()),
        ones(3, 3, 4, 6),
        ones(2, 8, 8, 4),
    ),
    (
        "conv_general_dilated",
        "n (x1 s1) (x2 s2) c, w1! w2! c o -> n x1 x2 o",
        strided(4),
        ones(2, 8, 8, 4),
        ones(4, 4, 4, 6),
    ),
    (
        "conv_general_dilated",
        "n x1! x2! c, w1! w2! c o -> n y1! y2! o",
        last_conv(NHWC, padding="VALID"),
        ones(2, 8, 8, 4),
        ones(3, 3, 4, 6),
    ),
    (
        "conv_general_dilated",
        "n x1 x2 c, _ _ c o -> n x1 x2 o",
        last_conv(NHWC),
        ones(2, 8, 8, 4),
        ones(1, 1, 4, 6),
    ),
    (
        "conv_general_dilated",
        "n x1~1+1 x2~1+1 (g c), w1! w2! c (g o) -> n x1 x2 (g o)",
        last_conv(NHWC, feature_group_count=2),
        ones(2, 8, 8, 4),
        ones(3, 3, 2, 6),
    ),
    (
        "reduce_window_max",
        "x1 (x2 s2) (x3 s3) x4 -> x1 x2 x3 x4",
        pool(2),
        ones(2, 4, 4, 3),
    ),
    (
        "reduce_window_max",
        "x1 (x2~0+1 s2) (x3~0+1 s3) x4 -> x1 x2 x3 x4",
        pool(3),
        ones(2, 4, 4, 3),
    ),
    (
        "select_and_scatter_add",
        "x1 x2 x3 x4, x1 (x2 s2) (x3 s3) x4 -> x1 (x2 s2) (x3 s3) x4",
        jax.grad(lambda x: pool(2)(x).sum()),
        ones(2, 4, 4, 3),
    ),
    (
        "select_and_scatter_add",
        "x1 y2! y3! x4, x1 x2! x3! x4 -> x1 x2! x3! x4",
        jax.grad(lambda x: pool(3)(x).sum()),
        ones(2, 4, 4, 3),
    ),
    (
        "ragged_dot_general",
        "i! k, g! k j, g! -> i! j",
        lax.ragged_dot,
        ones(8, 4),
        ones(2, 4, 6),
        jnp.array([3, 5]),
    ),
    (
        "optimization_barrier",
        "a b, c -> a b, c",
        lambda x, y: lax.optimization_barrier((x, y)),
        ones(4, 6),
        ones(8),
    ),
]


@pytest.mark.parametrize(
    "primitive, text, function, args",
    [(*r[:3], r[3:]) for r in GOLDEN],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_golden_rule(primitive, text, function, args):
    assert text in [show(e.rule()) for e in equations(function, *args) if e.name == primitive]


def test_a_scaled_matmul_keeps_a_block_with_its_scale():
    operands = [Shaped((2, 4, 64)), Shaped((2, 6, 64)), Shaped((2, 4, 2)), Shaped((2, 6, 2))]
    rule = rule_of("scaled_matmul_wrapper", {}, operands, [Shaped((2, 4, 6))])
    assert show(rule) == "b i (s k), b j (s k), b i s, b j s -> b i j"
    assert rule.splittable == ("b", "i", "s", "j")


def test_pseudo_ops_keep_the_loop_whole_and_all_else_free():
    a, stacked = Shaped((4, 6)), Shaped((5, 4, 6))
    assert show(rule_of("scan_slice", {}, [stacked], [a])) == "loop! a b -> a b"
    assert show(rule_of("scan_stack", {}, [a], [stacked])) == "a b -> loop! a b"
    assert show(rule_of("loop_carry", {}, [a, a], [a, a])) == "a b, a b -> a b, a b"
    assert show(rule_of("cond_join", {}, [a, a, a], [a])) == "a b, a b, a b -> a b"


@pytest.mark.parametrize(
    "primitive", ["pallas_call", "shard_map", "ffi_call", "pure_callback", "jit", "scan", "no_such_op"]
)
def test_opaque_primitives_have_no_rule(primitive):
    value = Shaped((4, 6))
    assert rule_of(primitive, {}, [value], [value]) is None
    assert flops_of(primitive, {}, [value], [value]) == 24
    assert not is_light(primitive)


@pytest.mark.parametrize(
    "flops, primitive, function, args",
    [
        (2 * 4 * 6 * 8, "dot_general", jnp.matmul, (ones(4, 6), ones(6, 8))),
        (2 * 2 * 4 * 6 * 8, "dot_general", jnp.matmul, (ones(2, 4, 6), ones(2, 6, 8))),
        (2 * 8 * 4 * 6, "ragged_dot_general", lax.ragged_dot, (ones(8, 4), ones(2, 4, 6), jnp.array([3, 5]))),
        (
            2 * (2 * 6 * 4) * (8 * 3 - 2) ** 2,  # in each spatial dim two positions of windows meet padding
            "conv_general_dilated",
            last_conv(NHWC),
            (ones(2, 8, 8, 4), ones(3, 3, 4, 6)),
        ),
        (24, "add", jnp.add, (ones(4, 6), ones(4, 6))),
        (240, "exp", jnp.exp, (ones(4, 6),)),
        (24, "reduce_sum", lambda x: x.sum(0), (ones(4, 6),)),
        (0, "transpose", jnp.transpose, (ones(4, 6),)),
        (4, "integer_pow", lambda x: lax.integer_pow(x, 4), (1.0,)),
    ],
)
def test_flops(flops, primitive, function, args):
    found = [e for e in equations(function, *args) if e.name == primitive]
    assert [flops_of(e.name, e.params, e.operands, e.results) for e in found] == [flops]


@pytest.mark.parametrize(
    "window, options",
    [
        ((3, 3, 4, 6), {"window_strides": (1, 1), "padding": "SAME"}),
        ((3, 3, 4, 6), {"window_strides": (2, 2), "padding": "SAME"}),
        ((1, 1, 4, 6), {"window_strides": (2, 1), "padding": "SAME"}),
        ((5, 7, 4, 6), {"window_strides": (2, 2), "padding": "VALID"}),
        (
            (3, 2, 2, 6),
            {
                "window_strides": (1, 1),
                "padding": ((1, 3), (-1, 2)),
                "rhs_dilation": (2, 1),
                "feature_group_count": 2,
            },
        ),
    ],
)
def test_a_convolution_and_its_derivatives_count_what_xla_counts(window, options):
    x, w = ones(2, 9, 8, 4), ones(*window)

    def forward(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=NHWC, **options)

    y = forward(x, w)
    with_x = (lambda y, w: jax.linear_transpose(lambda x: forward(x, w), x)(y), (y, w))
    with_w = (lambda y, x: jax.linear_transpose(lambda w: forward(x, w), w)(y), (y, x))
    for function, args in ((forward, (x, w)), with_x, with_w):
        (found,) = [e for e in equations(function, *args) if e.name == "conv_general_dilated"]
        analysed = jax.jit(function).lower(*args).cost_analysis()
        assert flops_of(found.name, found.params, found.operands, found.results) == analysed["flops"]


def test_what_is_fused():
    light = [
        "add",
        "select_n",
        "convert_element_type",
        "broadcast_in_dim",
        "iota",
        "transpose",
        "reduce_sum",
        "random_bits",
    ]
    heavy = [
        "dot_general",
        "conv_general_dilated",
        "gather",
        "scatter-add",
        "sort",
        "top_k",
        "reshape",
        "concatenate",
        "fft",
    ]
    assert all(is_light(name) for name in light)
    assert not any(is_light(name) for name in heavy)
    assert is_light("reshape", [Shaped((4, 6))], [Shaped((4, 1, 6))])
    assert not is_light("reshape", [Shaped((4, 6))], [Shaped((24,))])


def test_a_primitive_has_one_row():
    assert sum(len(room.TABLE) for room in ROOMS) == len(TABLE)


def test_an_empty_array_is_not_split():
    value = Shaped((0, 4))
    assert show(rule_of("add", {}, [value, value], [value])) == "a! b, a! b -> a! b"
    assert rule_of("reshape", {"dimensions": None}, [value], [Shaped((2, 0))]).splittable == ()


def test_a_factor_with_two_extents_is_an_error():
    with pytest.raises(ValueError, match="factor a walks dims of 4 and of 5"):
        rule_of("add", {}, [Shaped((4,)), Shaped((5,))], [Shaped((4,))])


def test_rules_do_not_import_jax():
    code = "import sys, planner.rules, planner.graph.notation; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SHARDED = [
    ("i k, k j -> i j", jnp.matmul, ones(4, 6), ones(6, 8)),
    ("b i k, b k j -> b i j", jnp.matmul, ones(2, 4, 6), ones(2, 6, 8)),
    (
        "b t h e, b s h e -> b h t s",
        lambda q, k: jnp.einsum("bthe,bshe->bhts", q, k),
        ones(2, 4, 2, 6),
        ones(2, 6, 2, 6),
    ),
    ("n x! y! c, v! w! c o -> n p! q! o", last_conv(NHWC), ones(2, 6, 6, 4), ones(3, 3, 4, 6)),
    ("a b c -> b", lambda x: x.sum((0, 2)), ones(4, 6, 8)),
    ("v! d, b t -> b t d", lambda table, t: table[t], ones(10, 4), jnp.arange(8).reshape(2, 4)),
    ("b v!, b t -> b t", lambda x, t: jnp.take_along_axis(x, t, 1), ones(2, 10), jnp.arange(8).reshape(2, 4)),
    ("a b c! -> a b c!", jax.nn.softmax, ones(2, 4, 6)),
    ("a b! -> a z!, a z!", lambda x: lax.top_k(x, 2), ones(4, 6)),
    ("a (b c) d -> a b c d", lambda x: x.reshape(x.shape[0], -1, 3, x.shape[2]), ones(2, 12, 4)),
    ("m! k, g! k j, g! -> m! j", lax.ragged_dot, ones(8, 4), ones(2, 4, 6), jnp.array([3, 5])),
]


def piece(value, dims, factor, half):
    """One half of a value along the dim whose major factor is `factor`."""
    axis = next((d for d, dim in enumerate(dims) if dim[:1] == (factor,)), None)
    return value if axis is None else np.split(np.asarray(value), 2, axis)[half]


@pytest.mark.parametrize(
    "text, function, args", [(*r[:2], r[2:]) for r in SHARDED], ids=[r[0] for r in SHARDED]
)
def test_a_function_on_real_shards_gives_the_shards_of_its_result(text, function, args):
    args = [
        np.sin(np.arange(1.0, 1 + a.size, dtype=np.float32)).reshape(a.shape) if a.dtype == np.float32 else a
        for a in args
    ]
    want = jax.tree.leaves(function(*args))
    rule = parse(text, [a.shape for a in args], [w.shape for w in want])
    assert rule.splittable
    for factor in rule.splittable:
        halves = [
            jax.tree.leaves(
                function(*(piece(a, d, factor, h) for a, d in zip(args, rule.operands, strict=True)))
            )
            for h in (0, 1)
        ]
        for place, dims in enumerate(rule.results):
            parts = [half[place] for half in halves]
            for h, part in enumerate(parts if factor not in rule.reduced else ()):
                np.testing.assert_allclose(part, piece(want[place], dims, factor, h), rtol=1e-5, atol=1e-5)
            if factor in rule.reduced:
                np.testing.assert_allclose(parts[0] + parts[1], want[place], rtol=1e-5, atol=1e-5)
