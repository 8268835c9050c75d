"""GPT-2: learned positions, LayerNorm before attention and MLP, one matrix for embedding and output.

Radford et al. 2019; sizes of its Table 2, with the vocabulary of 50257 padded to a multiple of 128, and
without a bias of the keys, whose gradient would be nothing but rounding.

Shapes: B batch, T time, D width, F hidden width, H heads, E width of a head, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import normal

from models.example import Example, must_divide
from models.language import LanguageConfig, build_language
from models.layers import causal_attention, make_blocks, merge_heads, run_blocks, split_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(LanguageConfig):
    """heads: of width d_model / heads. The hidden width of the MLP is 4 d_model."""

    heads: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        must_divide("heads", self.heads, "d_model", self.d_model)


CONFIGS = {
    "tiny": Config(),
    "gpt2_small": Config(
        batch=64, seq=1024, vocab=50304, layers=12, d_model=768, heads=12,
        dtype="bfloat16", learning_rate=6e-4,
    ),
    "gpt2_xl": Config(
        batch=64, seq=1024, vocab=50304, layers=48, d_model=1600, heads=25,
        dtype="bfloat16", learning_rate=2e-4, remat=True,
    ),
}  # fmt: skip


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). The query, key and value weights are three matrices."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        def linear(inputs: int, outputs: int, stddev: float = 0.02, bias: bool = True) -> nnx.Linear:
            return nnx.Linear(
                inputs, outputs, use_bias=bias, dtype=config.dtype, kernel_init=normal(stddev), rngs=rngs
            )

        def norm() -> nnx.LayerNorm:
            return nnx.LayerNorm(width, epsilon=1e-5, dtype=config.dtype, rngs=rngs)

        width, last = config.d_model, 0.02 / (2 * config.layers) ** 0.5  # GPT-2 scales the residual's writers
        self.heads = config.heads
        self.norm1 = norm()
        # A bias of the keys would add the same to all scores of a query, which a softmax does not see.
        self.q, self.k, self.v = linear(width, width), linear(width, width, bias=False), linear(width, width)
        self.o = linear(width, width, last)
        self.norm2 = norm()
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width, last)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        h_BTD = self.norm1(x_BTD)
        q_BTHE, k_BTHE, v_BTHE = (split_heads(proj(h_BTD), self.heads) for proj in (self.q, self.k, self.v))
        x_BTD = x_BTD + self.o(merge_heads(causal_attention(q_BTHE, k_BTHE, v_BTHE)))
        h_BTF = nnx.gelu(self.up(self.norm2(x_BTD)))
        return x_BTD + self.down(h_BTF)


class Gpt(nnx.Module):
    """tokens [B, T] -> logits [B, T, V]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, dtype = config.d_model, config.dtype
        self.remat = config.remat
        self.tokens = nnx.Embed(config.vocab, width, dtype=dtype, embedding_init=normal(0.02), rngs=rngs)
        self.positions = nnx.Param(normal(0.01)(rngs.params(), (config.seq, width), jnp.float32))
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config.layers, config.scan, rngs)
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, dtype=dtype, rngs=rngs)

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        x_BTD = self.tokens(tokens_BT)
        x_BTD = x_BTD + self.positions[: tokens_BT.shape[1]].astype(x_BTD.dtype)
        x_BTD = self.norm(run_blocks(self.blocks, x_BTD, self.remat))
        return self.tokens.attend(x_BTD)


def build(config: Config) -> Example:
    """GPT's train step; its batch is {'inputs', 'targets'}: int32 [B, T]."""
    return build_language("gpt", config, lambda rngs: Gpt(config, rngs=rngs))
