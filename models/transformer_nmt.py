"""The Transformer: translation by attention, of a source to itself, of a target to itself and to the source.

Vaswani et al. 2017 (arXiv 1706.03762), sizes of its Table 3, without dropout and without a bias of the keys,
whose gradient would be nothing but rounding; one matrix for both embeddings and the output; and the sizes of
the Transformer that PaSE plans (Elango 2021).

Shapes: B batch, T time of the target, S time of the source, D width, F hidden width, E width of a head,
V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import normal

from models.example import Example, must_divide
from models.layers import attention, causal_bias, make_blocks, merge_heads, run_blocks, split_heads
from models.translation import TranslationConfig, build_translation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TranslationConfig):
    """d_ff: hidden width of the MLPs. heads: of width d_model / heads. scan: one loop over stacked layers
    instead of a copy of the code for each. remat: keep only each layer's input for the backward pass."""

    d_ff: int = 256
    heads: int = 8
    smoothing: float = 0.1
    scan: bool = False
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        must_divide("heads", self.heads, "d_model", self.d_model)


CONFIGS = {
    "tiny": Config(),
    "base": Config(batch=512, seq=64, vocab=37_120, layers=6, d_model=512, d_ff=2048, dtype="bfloat16"),
    "big": Config(
        batch=512, seq=64, vocab=37_120, layers=6, d_model=1024, d_ff=4096, heads=16, dtype="bfloat16"
    ),
    "pase": Config(batch=64, seq=256, vocab=50_000, layers=6, d_model=512, d_ff=2048),
}  # fmt: skip


class Attention(nnx.Module):
    """Attention of x [B, T, D] to y [B, S, D], with a bias of the scores. -> [B, T, D]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        def linear(bias: bool = True) -> nnx.Linear:
            width = config.d_model
            return nnx.Linear(width, width, use_bias=bias, dtype=config.dtype, rngs=rngs)

        self.heads = config.heads
        self.q, self.k, self.v, self.o = linear(), linear(bias=False), linear(), linear()

    def __call__(self, x_BTD: jax.Array, y_BSD: jax.Array, bias_TS: jax.Array | None = None) -> jax.Array:
        q_BTHE, k_BSHE, v_BSHE = (
            split_heads(proj(z), self.heads)
            for proj, z in ((self.q, x_BTD), (self.k, y_BSD), (self.v, y_BSD))
        )
        return self.o(merge_heads(attention(q_BTHE, k_BSHE, v_BSHE, bias_TS)))


class Mlp(nnx.Module):
    """down(relu(up(x)))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.up = nnx.Linear(config.d_model, config.d_ff, dtype=config.dtype, rngs=rngs)
        self.down = nnx.Linear(config.d_ff, config.d_model, dtype=config.dtype, rngs=rngs)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        return self.down(nnx.relu(self.up(x_BTD)))


class EncoderBlock(nnx.Module):
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.attention, self.mlp = Attention(config, rngs=rngs), Mlp(config, rngs=rngs)
        self.norm1, self.norm2 = _norm(config, rngs), _norm(config, rngs)

    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        x_BSD = self.norm1(x_BSD + self.attention(x_BSD, x_BSD))
        return self.norm2(x_BSD + self.mlp(x_BSD))


class DecoderBlock(nnx.Module):
    """norm(x + attention(x)), then norm(x + attention to the source), then norm(x + mlp(x))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.attention, self.across = Attention(config, rngs=rngs), Attention(config, rngs=rngs)
        self.mlp = Mlp(config, rngs=rngs)
        self.norm1, self.norm2, self.norm3 = (_norm(config, rngs) for _ in range(3))

    def __call__(self, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_BTD, source_BSD = carried
        bias_TT = causal_bias(x_BTD.shape[1], x_BTD.shape[1])
        x_BTD = self.norm1(x_BTD + self.attention(x_BTD, x_BTD, bias_TT))
        x_BTD = self.norm2(x_BTD + self.across(x_BTD, source_BSD))
        return self.norm3(x_BTD + self.mlp(x_BTD)), source_BSD


class Transformer(nnx.Module):
    """Sources [B, S] and the targets so far [B, T] -> logits [B, T, V]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, layers, scan = config.d_model, config.layers, config.scan
        self.remat = config.remat
        self.tokens = nnx.Embed(
            config.vocab, width, dtype=config.dtype, embedding_init=normal(width**-0.5), rngs=rngs
        )
        self.encoder = make_blocks(lambda rngs: EncoderBlock(config, rngs=rngs), layers, scan, rngs)
        self.decoder = make_blocks(lambda rngs: DecoderBlock(config, rngs=rngs), layers, scan, rngs)

    def __call__(self, sources_BS: jax.Array, targets_BT: jax.Array) -> jax.Array:
        source_BSD = run_blocks(self.encoder, self.embed(sources_BS), self.remat)
        x_BTD, _ = run_blocks(self.decoder, (self.embed(targets_BT), source_BSD), self.remat)
        return self.tokens.attend(x_BTD)

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Each token's row, and the waves of its position. -> [B, T, D]."""
        x_BTD = self.tokens(tokens_BT)
        waves_TD = _waves(*x_BTD.shape[1:]).astype(x_BTD.dtype)
        return x_BTD * x_BTD.shape[-1] ** 0.5 + waves_TD


def _norm(config: Config, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(config.d_model, dtype=config.dtype, rngs=rngs)


def _waves(times: int, width: int) -> jax.Array:
    """Sines and cosines of the positions, with wavelengths from 2 pi to 10,000 times that. -> [T, D]."""
    angle_Td = jnp.arange(times)[:, None] * 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    return jnp.concatenate([jnp.sin(angle_Td), jnp.cos(angle_Td)], -1)


def build(config: Config) -> Example:
    """The train step; its batch is {'sources', 'inputs', 'targets'}: int32 [B, seq]."""
    return build_translation("transformer_nmt", config, lambda rngs: Transformer(config, rngs=rngs))
