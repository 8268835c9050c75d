"""Translation by LSTMs: an encoder, a decoder that starts from its carries, and attention over its outputs.

The network that FlexFlow plans (Jia et al. 2019): two layers each, attention as in Luong et al. 2015 (arXiv
1508.04025, its dot form), after the decoder's last layer.

Shapes: B batch, T time of the target, S time of the source, D width, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.example import Example
from models.lstm import Lstm
from models.translation import TranslationConfig, build_translation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TranslationConfig):
    """layers: of the encoder and of the decoder, of width d_model, a loop over time each."""


CONFIGS = {
    "tiny": Config(learning_rate=1e-2),
    "flexflow": Config(batch=64, seq=40, vocab=32_000, d_model=1024),
}


class Nmt(nnx.Module):
    """Sources [B, S] and the targets so far [B, T] -> logits [B, T, V]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, dtype = config.d_model, config.dtype

        def embedding() -> nnx.Embed:
            return nnx.Embed(config.vocab, width, dtype=dtype, rngs=rngs)

        def layers() -> nnx.List:
            return nnx.List([Lstm(width, width, dtype, rngs=rngs) for _ in range(config.layers)])

        self.source, self.target = embedding(), embedding()
        self.encoder, self.decoder = layers(), layers()
        self.mix = nnx.Linear(2 * width, width, use_bias=False, dtype=dtype, rngs=rngs)
        self.output = nnx.Linear(width, config.vocab, dtype=dtype, rngs=rngs)

    def __call__(self, sources_BS: jax.Array, targets_BT: jax.Array) -> jax.Array:
        x_SBD, carries = self.source(sources_BS.T), []
        for layer in self.encoder:
            x_SBD, carry = layer(x_SBD)
            carries.append(carry)
        y_TBD = self.target(targets_BT.T)
        for layer, carry in zip(self.decoder, carries, strict=True):
            y_TBD, _ = layer(y_TBD, carry)
        scores_BTS = jnp.einsum("tbd,sbd->bts", y_TBD, x_SBD).astype(jnp.float32)
        weights_BTS = jax.nn.softmax(scores_BTS).astype(x_SBD.dtype)
        context_BTD = jnp.einsum("bts,sbd->btd", weights_BTS, x_SBD)
        y_BTD = jnp.swapaxes(y_TBD, 0, 1)
        return self.output(nnx.tanh(self.mix(jnp.concatenate([context_BTD, y_BTD], -1))))


def build(config: Config) -> Example:
    """The train step; its batch is {'sources', 'inputs', 'targets'}: int32 [B, seq]."""
    return build_translation("nmt_lstm", config, lambda rngs: Nmt(config, rngs=rngs))
