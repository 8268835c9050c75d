"""Mixtral: llama's blocks, in which every token goes through two of several experts.

Jiang et al. 2024 (arXiv 2401.04088), sizes of its Table 1, and of the larger one as released. Tokens are
dispatched as in GShard (Lepikhin et al. 2020, arXiv 2006.16668): every sequence is a group with the same room
at each expert, and two einsums with a mask bring the tokens there and back; a token that finds no room goes
past the experts.

Shapes: B batch, T time, D width, F hidden width, X experts, C room at an expert, V vocabulary.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import normal

from models import llama
from models.example import Batch, Example
from models.language import build_language
from models.layers import make_blocks, run_blocks
from models.train import cross_entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """experts: of hidden width d_ff. room: at an expert, over what it would get if all got the same.
    balance: weight of the loss that keeps the experts' loads alike."""

    d_ff: int = 128
    experts: int = 16
    room: float = 2.0
    balance: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts < 2:
            raise ValueError("Setting 'experts' is 1, but a token goes to two of them; give 2 or more.")

    @property
    def capacity(self) -> int:
        """Tokens of a sequence that an expert takes."""
        return math.ceil(2 * self.seq / self.experts * self.room)


CONFIGS = {
    "tiny": Config(),
    "mixtral_8x7b": Config(
        batch=64, seq=4096, vocab=32_000, layers=32, d_model=4096, d_ff=14336, heads=32, kv_heads=8,
        experts=8, rope_base=1e6, dtype="bfloat16", learning_rate=3e-4, scan=True, remat=True,
    ),
    "mixtral_8x22b": Config(
        batch=64, seq=4096, vocab=32_768, layers=56, d_model=6144, d_ff=16384, heads=48, kv_heads=8,
        experts=8, rope_base=1e6, dtype="bfloat16", learning_rate=3e-4, scan=True, remat=True,
    ),
}  # fmt: skip


def route(logits_BTX: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """How much of which token's result comes from which place of which expert, and the balance loss.

    The weights of a token's two experts are a softmax of their logits; the first choices of a sequence take
    the places before the second ones. The loss is 1 when all experts get the same. -> [B, T, X, C], [].
    """
    probs_BTX = jax.nn.softmax(logits_BTX.astype(jnp.float32))
    experts = probs_BTX.shape[-1]
    first_BTX = jax.nn.one_hot(probs_BTX.argmax(-1), experts)
    second_BTX = jax.nn.one_hot((probs_BTX * (1 - first_BTX)).argmax(-1), experts)
    balance = experts * (first_BTX.mean(1) * probs_BTX.mean(1)).sum(-1).mean()

    before_B1X = first_BTX.sum(1, keepdims=True)
    place1_BTX = jnp.cumsum(first_BTX, 1) * first_BTX
    place2_BTX = (jnp.cumsum(second_BTX, 1) + before_B1X) * second_BTX
    chosen_BTX = probs_BTX * (first_BTX + second_BTX)
    weight_BTX = chosen_BTX / chosen_BTX.sum(-1, keepdims=True)
    # Places count from one; zero, and what is beyond the capacity, is no place: a row of zeros.
    place_BTX = (place1_BTX + place2_BTX).astype(jnp.int32) - 1
    return weight_BTX[..., None] * jax.nn.one_hot(place_BTX, capacity), balance


class Experts(nnx.Module):
    """Each token's two experts, down(silu(gate(x)) * up(x)), weighted. -> [B, T, D], and the balance loss."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        def weights(*shape: int) -> nnx.Param:
            return nnx.Param(normal(0.02)(rngs.params(), shape, jnp.float32))

        width, hidden, experts = config.d_model, config.d_ff, config.experts
        self.capacity = config.capacity
        self.router = llama.linear(config, width, experts, rngs)
        self.gate, self.up = weights(experts, width, hidden), weights(experts, width, hidden)
        self.down = weights(experts, hidden, width)

    def __call__(self, x_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
        dtype = x_BTD.dtype
        combine_BTXC, balance = route(self.router(x_BTD), self.capacity)
        dispatch_BTXC = (combine_BTXC > 0).astype(dtype)
        x_XBCD = jnp.einsum("btxc,btd->xbcd", dispatch_BTXC, x_BTD)
        gate_XBCF = jnp.einsum("xbcd,xdf->xbcf", x_XBCD, self.gate[...].astype(dtype))
        up_XBCF = jnp.einsum("xbcd,xdf->xbcf", x_XBCD, self.up[...].astype(dtype))
        y_XBCD = jnp.einsum("xbcf,xfd->xbcd", nnx.silu(gate_XBCF) * up_XBCF, self.down[...].astype(dtype))
        return jnp.einsum("btxc,xbcd->btd", combine_BTXC.astype(dtype), y_XBCD), balance


class Block(llama.AttentionBlock):
    """x + attention(norm(x)), then x + experts(norm(x)); adds its balance loss to the others'."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.experts = Experts(config, rngs=rngs)

    def __call__(self, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_BTD, losses = carried
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        y_BTD, balance = self.experts(self.norm2(x_BTD))
        return x_BTD + y_BTD, losses + balance


class Mixtral(nnx.Module):
    """tokens [B, T] -> logits [B, T, V], and the mean balance loss of the layers."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, dtype = config.d_model, config.dtype
        self.remat, self.layers = config.remat, config.layers
        self.tokens = nnx.Embed(config.vocab, width, dtype=dtype, embedding_init=normal(0.02), rngs=rngs)
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config.layers, config.scan, rngs)
        self.norm = nnx.RMSNorm(width, epsilon=1e-5, dtype=dtype, rngs=rngs)
        self.output = llama.linear(config, width, config.vocab, rngs)

    def __call__(self, tokens_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        carried = self.tokens(tokens_BT), jnp.zeros((), jnp.float32)
        x_BTD, balance = run_blocks(self.blocks, carried, self.remat)
        return self.output(self.norm(x_BTD)), balance / self.layers


def build(config: Config) -> Example:
    """Mixtral's train step; its batch is {'inputs', 'targets'}: int32 [B, T]."""

    def loss_of(model: Mixtral, batch: Batch) -> jax.Array:
        logits_BTV, balance = model(batch["inputs"])
        return cross_entropy(logits_BTV, batch["targets"]) + config.balance * balance

    return build_language("moe", config, lambda rngs: Mixtral(config, rngs=rngs), loss_of)
