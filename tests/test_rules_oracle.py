"""Every rule against what its primitive does: each splittable factor cut in two, and pairs for heavy ops."""

import dataclasses
import itertools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from rule_oracle import assert_splits, equations, primitives

from planner.graph.notation import parse, show
from planner.rules import TABLE, flops_of, is_light

PSEUDO = {"cond_join", "loop_carry", "scan_slice", "scan_stack"}
# Rows that need a mesh, a GPU or another jax, draw new numbers each time, or that comparators of sorts use.
ELSEWHERE = {
    "dot_product_attention_bwd_wrapper", "dot_product_attention_fwd_wrapper",
    "empty", "empty2", "eq_to", "iota_2x32_shape", "layout_constraint", "le_to", "log2", "lt_to", "mulhi",
    "one_minus_square", "platform_index", "polynomial", "pvary", "reshard", "rng_uniform",
    "scaled_matmul_wrapper", "sharding_constraint", "with_memory_space_constraint", "zeros_like",
}  # fmt: skip


def wave(*shape: int):
    """Numbers that do not repeat."""
    return jnp.sin(jnp.arange(1.0, 1 + np.prod(shape)).reshape(shape))


FLOAT = jnp.arange(1.0, 49.0).reshape(4, 12) * wave(4, 12)
EVEN = wave(4, 4, 6)
IMAGE = wave(2, 6, 6, 4)
ROWS = jnp.array([[3, 0], [1, 1], [2, 3]])
KEY = jax.random.key(7)
SQUARES = EVEN[:, :, :4] @ EVEN[:, :, :4].swapaxes(1, 2) + 5 * jnp.eye(4)


def unary(*names: str):
    return lambda x: [getattr(lax, name)(x) for name in names]


def window_loss(x):
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    mean = lax.reduce_window(x, 0.0, lax.add, (1, 3, 1, 1), (1, 1, 1, 1), "SAME")
    return (pooled**2).sum() + (mean**2).sum()


def conv(layout: tuple[str, str, str], **options):
    def loss(x, w):
        y = lax.conv_general_dilated(
            x, w, **{"window_strides": (1, 1), "padding": "SAME"} | options, dimension_numbers=layout
        )
        return (y**2).sum()

    return jax.grad(loss, (0, 1))


def update(method: str, **options):
    return lambda x, u: getattr(x.at[ROWS], method)(u, **options)


def ragged(x, w, sizes):
    return jax.grad(lambda x, w: (lax.ragged_dot(x, w, sizes) ** 2).sum(), (0, 1))(x, w)


NHWC = ("NHWC", "HWIO", "NHWC")
CASES = {
    "abs": (
        unary("abs", "neg", "sign", "floor", "ceil", "round", "is_finite", "square", "sqrt", "rsqrt", "cbrt"),
        FLOAT,
    ),
    "exp": (
        unary(
            "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan", "sinh", "cosh"
        ),
        FLOAT,
    ),
    "erf": (
        unary("erf", "erfc", "erf_inv", "lgamma", "digamma", "bessel_i0e", "bessel_i1e", "asin", "acos"),
        FLOAT / 99,
    ),
    "atan": (unary("atan", "asinh", "atanh"), FLOAT / 99),
    "acosh": (unary("acosh"), jnp.abs(FLOAT) + 2),
    "binary": (
        lambda x, y: (
            x + y,
            x - y,
            x * y,
            x / y,
            jnp.maximum(x, y),
            lax.min(x, y),
            lax.pow(lax.abs(x), y),
            lax.rem(x, y),
            lax.atan2(x, y),
            lax.nextafter(x, y),
        ),
        FLOAT,
        FLOAT + 1,
    ),
    "compare": (
        lambda x, y: (
            x < y,
            x <= y,
            x > y,
            x >= y,
            x == y,
            x != y,
            jnp.where(x < y, x, y),
            lax.clamp(0.0, x, 1.0),
        ),
        FLOAT,
        FLOAT.at[1].set(0),
    ),
    "bits": (
        lambda i: (
            i & 3,
            i | 5,
            i ^ 6,
            ~i,
            i << 1,
            i >> 1,
            lax.shift_right_logical(i, 1),
            lax.population_count(i),
            lax.clz(i),
            lax.bitcast_convert_type(i, jnp.float32),
        ),
        jnp.arange(24).reshape(4, 6),
    ),
    "bytes": (
        lambda i: lax.bitcast_convert_type(lax.bitcast_convert_type(i, jnp.uint8), jnp.int32),
        jnp.arange(24).reshape(4, 6),
    ),
    "complex": (
        lambda x, y: (lax.real(lax.complex(x, y)), lax.imag(lax.conj(lax.complex(x, y)))),
        FLOAT,
        FLOAT,
    ),
    "special": (
        lambda x: (
            lax.igamma(x, x),
            lax.igammac(x, x),
            lax.igamma_grad_a(x, x),
            lax.betainc(x, x, x / 99),
            lax.polygamma(jnp.ones_like(x), x),
            lax.zeta(x + 1, x),
        ),
        jnp.abs(FLOAT) + 1,
    ),
    "unchanged": (
        lambda x, y: (
            lax.optimization_barrier((x, y)),
            jax.lax.reduce_precision(x, 8, 7),
            jnp.copy(x),
            x.astype(jnp.bfloat16),
            x**3,
            jax.device_put(x),
        ),
        FLOAT,
        EVEN,
    ),
    "add_any": (jax.grad(lambda x: (x * x.T).sum() + x.sum()), FLOAT[:, :4]),
    "dot": (lambda x, w: x.T @ w, FLOAT, FLOAT),
    "dot batched": (
        lambda x, y: (jnp.einsum("bik,bjk->bij", x, y), jnp.einsum("abc,acd->db", x, y.swapaxes(1, 2))),
        EVEN,
        wave(4, 4, 6),
    ),
    "ragged dot": (ragged, FLOAT, wave(2, 12, 6), jnp.array([1, 3])),
    "conv": (conv(NHWC), IMAGE, wave(2, 2, 4, 2)),
    "conv NCHW": (conv(("NCHW", "OIHW", "NCHW")), IMAGE, wave(4, 6, 3, 3)),
    "conv strided": (conv(NHWC, window_strides=(2, 2)), IMAGE, wave(3, 3, 4, 2)),
    "conv dilated": (conv(NHWC, rhs_dilation=(2, 1)), IMAGE, wave(3, 2, 4, 2)),
    "conv strided, odd": (conv(NHWC, window_strides=(2, 2)), wave(2, 8, 12, 4), wave(7, 3, 4, 2)),
    "conv patches": (conv(NHWC, window_strides=(2, 3), padding="VALID"), IMAGE, wave(2, 3, 4, 2)),
    "conv valid": (conv(NHWC, padding="VALID"), IMAGE, wave(3, 3, 4, 2)),
    "conv one-sided": (conv(NHWC, padding=((2, 0), (0, 2))), IMAGE, wave(3, 3, 4, 2)),
    "conv grouped": (conv(NHWC, feature_group_count=2), IMAGE, wave(3, 3, 2, 4)),
    "conv depthwise": (conv(NHWC, feature_group_count=4), IMAGE, wave(3, 3, 1, 8)),
    "conv pointwise": (conv(NHWC), IMAGE, wave(1, 1, 4, 2)),
    "reduce": (
        lambda x: (
            x.sum(1),
            x.max(0),
            x.min(),
            x.prod(1),
            (x > 0).all(1),
            (x > 0).any(0),
            lax.reduce_xor(x.astype(int), (0,)),
        ),
        FLOAT / 9,
    ),
    "arg": (lambda x: (x.argmax(1), x.argmin(0), lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (1,))), FLOAT),
    "running": (
        lambda x: (
            jnp.cumsum(x, 1),
            lax.cummax(x, 0),
            lax.cummin(x, 1),
            lax.cumprod(x / 9, 1),
            lax.cumlogsumexp(x, 0),
        ),
        FLOAT,
    ),
    "sort": (
        lambda x: (
            jnp.sort(x, 0),
            lax.sort((x, x + 1), dimension=1, num_keys=1),
            lax.top_k(x, 3),
            lax.approx_max_k(x, 2),
        ),
        FLOAT,
    ),
    "window": (jax.grad(window_loss), IMAGE),
    "jvp of max pool": (
        lambda x: jax.jvp(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), (x,), (x,)
        ),
        IMAGE,
    ),
    "reshape": (
        lambda x: (
            x.reshape(16, 6),
            x.reshape(4, 24),
            x.reshape(2, 2, 4, 3, 2),
            x.reshape(96),
            x.reshape(8, 12),
            x.reshape(3, 32),
        ),
        EVEN,
    ),
    "broadcast": (
        lambda x: (
            jnp.broadcast_to(x[:, None], (4, 3, 12)),
            jnp.ones((4, 6)),
            lax.broadcast_in_dim(x[:, :1], (4, 5), (0, 1)),
        ),
        FLOAT,
    ),
    "transpose": (
        lambda x: (x.transpose(2, 0, 1), x[:, None].squeeze(1), x[:, ::-1], jnp.expand_dims(x, 0)),
        EVEN,
    ),
    "pieces": (
        lambda x: (
            jnp.concatenate([x, x[:, :3]], 1),
            jnp.split(x, [3, 7], 1),
            jnp.pad(x, ((0, 0), (1, 2))),
            x[:, 2:9:2],
            jnp.tile(x, (1, 3)),
        ),
        FLOAT,
    ),
    "dynamic": (
        lambda x, i: (
            lax.dynamic_slice(x, (i, i), (4, 3)),
            lax.dynamic_update_slice(x, x[:, :5] + 1, (0, i)),
            lax.dynamic_update_slice(x, x[:1] + 1, (i, 0)),
        ),
        FLOAT,
        jnp.array(2),
    ),
    "lookup": (lambda x: x[ROWS], FLOAT),
    "lookup pairs": (lambda x: x[ROWS, ROWS], FLOAT),
    "lookup pieces": (
        lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 0), (2, 12)))(jnp.array([0, 2])),
        FLOAT,
    ),
    "take_along_axis": (
        jax.grad(lambda x: (jnp.take_along_axis(x, ROWS.T.repeat(2, 0), 1) ** 2).sum()),
        FLOAT,
    ),
    "embedding gradient": (jax.grad(lambda x: (x[ROWS] ** 2).sum()), FLOAT),
    "scatter add": (update("add"), FLOAT, jnp.ones((3, 2, 12))),
    "scatter mul": (update("multiply"), FLOAT, 2 * jnp.ones((3, 2, 12))),
    "scatter max": (update("max"), FLOAT, 9 * jnp.ones((3, 2, 12))),
    "scatter min": (update("min"), FLOAT, jnp.ones((3, 2, 12))),
    "scatter sub": (update("subtract"), FLOAT, jnp.ones((3, 2, 12))),
    "scatter set": (update("set"), FLOAT, jnp.ones((3, 2, 12))),
    "random": (
        lambda k: (
            jax.random.normal(k, (4, 6)),
            jax.random.split(k, 4),
            jax.random.fold_in(k, 3),
            jax.random.key_data(k),
            jax.random.wrap_key_data(jax.random.key_data(k)),
            jax.random.bernoulli(k, 0.5, (4, 2)),
            jax.random.clone(k),
            jax.random.key(3),
        ),
        KEY,
    ),
    "many keys": (lambda k: jax.vmap(lambda k: jax.random.bits(k, (4, 3)))(k), jax.random.split(KEY, 4)),
    "raw key": (lambda k: jax.random.uniform(k, (4, 6)), jax.random.PRNGKey(0)),
    "generator": (lambda k: lax.rng_bit_generator(k, (4, 6)), jnp.arange(4, dtype=jnp.uint32)),
    "gamma": (lambda k, x: jax.random.gamma(k, x), KEY, jnp.ones((2, 2))),
    "threefry": (
        lambda k: jax.extend.random.threefry_2x32(k, jnp.arange(24, dtype=jnp.uint32)),
        jax.random.PRNGKey(0),
    ),
    "stacks": (lambda x: (jnp.stack([x, x]), jnp.unstack(x)), FLOAT),
    "windows by function": (
        lambda x: (
            lax.reduce_window(x, 1.0, lax.mul, (1, 2), (1, 2), "VALID"),
            lax.reduce_window(x, np.inf, lax.min, (2, 1), (1, 1), "SAME"),
        ),
        FLOAT,
    ),
    "named": (lambda x: checkpoint_name(x, "x"), FLOAT),
    "pivots": (lambda x: lax.linalg.lu_pivots_to_permutation(lax.linalg.lu(x)[1], 6), SQUARES),
    "householder": (lambda x: lax.linalg.householder_product(x, x[..., 0]), SQUARES),
    "tridiagonal": (lambda x, y: lax.linalg.tridiagonal_solve(x, x + 5, x, y), wave(4, 4), EVEN),
    "iota": (lambda: (jnp.arange(6.0), lax.broadcasted_iota(jnp.int32, (4, 6), 1)),),
    "fft": (lambda x: (jnp.fft.fft(x), jnp.fft.rfft2(x), jnp.fft.irfft(jnp.fft.rfft(x))), EVEN),
    "factor": (
        lambda x: (
            jnp.linalg.cholesky(x),
            jnp.linalg.qr(x),
            jnp.linalg.svd(x),
            jnp.linalg.eigh(x),
            lax.linalg.lu(x),
            lax.linalg.tridiagonal(x),
            lax.linalg.hessenberg(x),
            lax.linalg.schur(x),
            lax.linalg.eig(x),
        ),
        SQUARES,
    ),
    "solve": (lambda x, y: lax.linalg.triangular_solve(x, y, left_side=True), SQUARES, EVEN),
    "norm": (
        jax.grad(
            lambda x: (
                jax.nn.softmax(jax.nn.gelu(x)).max()
                + jax.nn.logsumexp(jax.nn.silu(x))
                + jax.nn.one_hot(ROWS, 4).sum()
            )
        ),
        FLOAT,
    ),
}


SLOW = ("factor", "gamma", "special")


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES])
def test_every_split_gives_the_whole_answer(case):
    function, *args = CASES[case]
    seen = set()
    for equation in equations(function, *args):
        rule = equation.rule()
        assert rule is not None, f"no rule for {equation.name}"
        text = show(rule)
        if (equation.name, text) in seen:
            continue
        seen.add((equation.name, text))
        shapes = [v.shape for v in equation.operands], [v.shape for v in equation.results]
        mathematics = dataclasses.replace(rule, apart=(), filling=frozenset())  # what a line says
        assert parse(text, *shapes, sizes=rule.sizes) == mathematics
        assert flops_of(equation.name, equation.params, equation.operands, equation.results) >= 0
        pairs = () if is_light(equation.name) else itertools.combinations(rule.splittable, 2)
        for factors in (*((factor,) for factor in rule.splittable), *itertools.islice(pairs, 3)):
            assert_splits(equation, rule, factors)


def test_the_cases_cover_the_table():
    covered = set().union(*(primitives(function, *args) for function, *args in CASES.values()))
    assert set(TABLE) - covered - PSEUDO <= ELSEWHERE
