"""Llama 3: RMSNorm, rotary positions, grouped-query attention, SwiGLU, and an output matrix of its own.

Grattafiori et al. 2024 (arXiv 2407.21783), sizes of Table 3. No biases.

Shapes: B batch, T time, S time of the keys, D width, F hidden width, V vocabulary, E width of a head,
K key and value heads, G query heads that share one of them, N blocks of C queries.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import normal

from models.example import Example, must_divide
from models.language import LanguageConfig, build_language
from models.layers import causal_bias, make_blocks, merge_heads, run_blocks, split_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(LanguageConfig):
    """heads: of width d_model / heads. kv_heads: keys and values, each shared by heads / kv_heads queries.
    query_block: queries whose scores against all keys are held at a time; a sequence no longer than it is
    taken whole.
    rope_base: the longest rotary wavelength over 2 pi."""

    d_ff: int = 512
    heads: int = 16
    kv_heads: int = 8
    query_block: int = 8192
    rope_base: float = 500_000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        must_divide("heads", self.heads, "d_model", self.d_model)
        must_divide("kv_heads", self.kv_heads, "heads", self.heads)
        must_divide("query_block", min(self.query_block, self.seq), "seq", self.seq)


_LLAMA3 = Config(
    vocab=128_256, kv_heads=8, dtype="bfloat16", learning_rate=8e-5, warmup=8000, decay=1_200_000,
    scan=True, remat=True,
)  # fmt: skip

CONFIGS = {
    "tiny": Config(d_model=128),
    "llama3_8b": dataclasses.replace(
        _LLAMA3, batch=64, seq=4096, layers=32, d_model=4096, d_ff=14336, heads=32
    ),
    "llama3_70b": dataclasses.replace(
        _LLAMA3, batch=256, seq=4096, layers=80, d_model=8192, d_ff=28672, heads=64
    ),
    "llama3_405b": dataclasses.replace(
        _LLAMA3, batch=1024, seq=8192, layers=126, d_model=16384, d_ff=53248, heads=128, query_block=1024
    ),
}


def rotated(x_BTKE: jax.Array, base: float) -> jax.Array:
    """Each pair (i, i + E/2) turned by the angle time / base^(2i/E), in float32 (Su et al. 2021)."""
    half = x_BTKE.shape[-1] // 2
    frequency_e = base ** (-jnp.arange(half) / half)
    angle_T1e = (jnp.arange(x_BTKE.shape[1])[:, None] * frequency_e)[:, None, :]
    cos, sin = jnp.cos(angle_T1e), jnp.sin(angle_T1e)
    low, high = jnp.split(x_BTKE.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return turned.astype(x_BTKE.dtype)


def grouped_attention(
    q_BTKGE: jax.Array, k_BSKE: jax.Array, v_BSKE: jax.Array, start: jax.Array | int = 0
) -> jax.Array:
    """Causal attention of queries that begin at time `start`; softmax in float32. -> [B, T, K, G, E]."""
    scores_BKTGS = jnp.einsum("btkge,bske->bktgs", q_BTKGE * q_BTKGE.shape[-1] ** -0.5, k_BSKE)
    bias_T1S = causal_bias(q_BTKGE.shape[1], k_BSKE.shape[1], start)[:, None]
    weights_BKTGS = jax.nn.softmax(scores_BKTGS.astype(jnp.float32) + bias_T1S).astype(v_BSKE.dtype)
    return jnp.einsum("bktgs,bske->btkge", weights_BKTGS, v_BSKE)


def blocked_attention(q_BTKGE: jax.Array, k_BSKE: jax.Array, v_BSKE: jax.Array, block: int) -> jax.Array:
    """`grouped_attention`, `block` queries at a time, so that forward and backward hold scores of
    [B, K, block, G, S] and no more. -> [B, T, K, G, E]."""
    count = q_BTKGE.shape[1] // block
    if count <= 1:
        return grouped_attention(q_BTKGE, k_BSKE, v_BSKE)
    q_NBCKGE = jnp.moveaxis(q_BTKGE.reshape(q_BTKGE.shape[0], count, block, *q_BTKGE.shape[2:]), 1, 0)
    attend = jax.checkpoint(
        lambda one: grouped_attention(one[0], k_BSKE, v_BSKE, start=one[1]), prevent_cse=False
    )
    out_NBCKGE = jax.lax.map(attend, (q_NBCKGE, block * jnp.arange(count)))
    return jnp.moveaxis(out_NBCKGE, 0, 1).reshape(q_BTKGE.shape)


def linear(config: Config, inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    """A linear as all of llama's are: no bias, weights from a normal of 0.02."""
    return nnx.Linear(
        inputs, outputs, use_bias=False, dtype=config.dtype, kernel_init=normal(0.02), rngs=rngs
    )


class AttentionBlock(nnx.Module):
    """The half of a block that attends, and the norms of both halves."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        def norm() -> nnx.RMSNorm:
            return nnx.RMSNorm(config.d_model, epsilon=1e-5, dtype=config.dtype, rngs=rngs)

        width, kv_width = config.d_model, config.d_model // config.heads * config.kv_heads
        self.config = config
        self.norm1, self.norm2 = norm(), norm()
        self.q, self.k = linear(config, width, width, rngs), linear(config, width, kv_width, rngs)
        self.v, self.o = linear(config, width, kv_width, rngs), linear(config, width, width, rngs)

    def attention(self, h_BTD: jax.Array) -> jax.Array:
        """Grouped-query attention with rotary positions. -> [B, T, D]."""
        config = self.config
        q_BTHE = rotated(split_heads(self.q(h_BTD), config.heads), config.rope_base)
        k_BTKE = rotated(split_heads(self.k(h_BTD), config.kv_heads), config.rope_base)
        v_BTKE = split_heads(self.v(h_BTD), config.kv_heads)
        q_BTKGE = q_BTHE.reshape(*q_BTHE.shape[:2], config.kv_heads, -1, q_BTHE.shape[-1])
        out_BTKGE = blocked_attention(q_BTKGE, k_BTKE, v_BTKE, config.query_block)
        return self.o(merge_heads(out_BTKGE.reshape(q_BTHE.shape)))


class Block(AttentionBlock):
    """x + attention(norm(x)), then x + down(silu(gate(norm(x))) * up(norm(x)))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        width, hidden = config.d_model, config.d_ff
        self.gate, self.up = linear(config, width, hidden, rngs), linear(config, width, hidden, rngs)
        self.down = linear(config, hidden, width, rngs)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        h_BTD = self.norm2(x_BTD)
        return x_BTD + self.down(nnx.silu(self.gate(h_BTD)) * self.up(h_BTD))


class Llama(nnx.Module):
    """tokens [B, T] -> logits [B, T, V]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, dtype = config.d_model, config.dtype
        self.remat = config.remat
        self.tokens = nnx.Embed(config.vocab, width, dtype=dtype, embedding_init=normal(0.02), rngs=rngs)
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config.layers, config.scan, rngs)
        self.norm = nnx.RMSNorm(width, epsilon=1e-5, dtype=dtype, rngs=rngs)
        self.output = linear(config, width, config.vocab, rngs)

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        x_BTD = run_blocks(self.blocks, self.tokens(tokens_BT), self.remat)
        return self.output(self.norm(x_BTD))


def build(config: Config) -> Example:
    """Llama's train step; its batch is {'inputs', 'targets'}: int32 [B, T]."""
    return build_language("llama", config, lambda rngs: Llama(config, rngs=rngs))
