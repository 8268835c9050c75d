"""What the models share: stacks of blocks, scanned or unrolled, and attention.

Shapes: B batch, T time, S time of the keys, H heads, E width of a head.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def make_blocks(block_of: Callable[[nnx.Rngs], nnx.Module], layers: int, scan: bool, rngs: nnx.Rngs) -> Any:
    """`layers` blocks: a list, or for a scan one block whose parameters have a leading dim of `layers`.

    Both hold the same numbers. One block is traced, however many there are.
    """
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: block_of(nnx.Rngs(0))))
    keys = jax.random.split(rngs.params(), layers)

    def params_of(key: jax.Array) -> nnx.State:
        return nnx.state(block_of(nnx.Rngs(key)))

    if scan:
        return nnx.merge(graphdef, jax.vmap(params_of)(keys))
    jitted = jax.jit(params_of)
    return nnx.List([nnx.merge(graphdef, jitted(key)) for key in keys])


def run_blocks(blocks: Any, x: Any, remat: bool) -> Any:
    """Each block on the result of the one before, an array or a pytree of them. remat: the backward
    pass keeps only their inputs."""
    scan = not isinstance(blocks, nnx.List)
    graphdef = nnx.graphdef(blocks if scan else blocks[0])

    def apply(params: Any, x: Any) -> Any:
        return nnx.merge(graphdef, params)(x)

    if remat:
        # A loop keeps forward and backward apart by itself; straight code has to be kept from merging them.
        apply = jax.checkpoint(apply, prevent_cse=not scan)
    if scan:
        return jax.lax.scan(lambda x, params: (apply(params, x), None), x, nnx.state(blocks))[0]
    # Jitted, so that JAX traces and differentiates one block, however many there are.
    apply = jax.jit(apply)
    for block in blocks:
        x = apply(nnx.state(block), x)
    return x


def split_heads(x_BTD: jax.Array, heads: int) -> jax.Array:
    """[B, T, H * E] -> [B, T, H, E]."""
    return x_BTD.reshape(*x_BTD.shape[:-1], heads, -1)


def merge_heads(x_BTHE: jax.Array) -> jax.Array:
    """[B, T, H, E] -> [B, T, H * E]."""
    return x_BTHE.reshape(*x_BTHE.shape[:-2], -1)


def causal_bias(times: int, keys: int, start: jax.Array | int = 0) -> jax.Array:
    """What to add to the scores of queries at `start`, `start` + 1, ...: -inf where the key is later than the
    query. Added, not selected by, so that the backward pass needs nothing of it. -> [T, S]."""
    seen_TS = start + jnp.arange(times)[:, None] >= jnp.arange(keys)
    return jnp.where(seen_TS, 0.0, -jnp.inf)


def attention(
    q_BTHE: jax.Array, k_BSHE: jax.Array, v_BSHE: jax.Array, bias_TS: jax.Array | None = None
) -> jax.Array:
    """Attention of every position to all, `bias_TS` added to the scores; softmax in float32.
    -> [B, T, H, E]."""
    scores_BHTS = jnp.einsum("bthe,bshe->bhts", q_BTHE * q_BTHE.shape[-1] ** -0.5, k_BSHE)
    scores_BHTS = scores_BHTS.astype(jnp.float32)
    if bias_TS is not None:
        scores_BHTS = scores_BHTS + bias_TS
    weights_BHTS = jax.nn.softmax(scores_BHTS).astype(v_BSHE.dtype)
    return jnp.einsum("bhts,bshe->bthe", weights_BHTS, v_BSHE)


def causal_attention(q_BTHE: jax.Array, k_BSHE: jax.Array, v_BSHE: jax.Array) -> jax.Array:
    """Attention of every position to itself and those before it. -> [B, T, H, E]."""
    return attention(q_BTHE, k_BSHE, v_BSHE, causal_bias(q_BTHE.shape[1], k_BSHE.shape[1]))
