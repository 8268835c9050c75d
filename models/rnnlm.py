"""A language model of LSTM layers: embedding, recurrent layers, and an output matrix of its own.

Zaremba et al. 2014 (arXiv 1409.2329), its large model, without dropout; and the sizes of the RNNLM that PaSE
plans (Elango 2021), two layers of 2048 with the 100,000 words of the Billion-Word corpus.

Shapes: B batch, T time, D width, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.example import Example
from models.language import TextConfig, build_language
from models.lstm import Lstm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """layers: of width d_model, a loop over time each."""

    seq: int = 32


CONFIGS = {
    "tiny": Config(learning_rate=1e-2),
    "zaremba_large": Config(batch=64, seq=35, vocab=10_000, d_model=1500),
    "pase": Config(batch=64, seq=256, vocab=100_000, d_model=2048),
}


class Rnnlm(nnx.Module):
    """tokens [B, T] -> logits [B, T, V]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, dtype = config.d_model, config.dtype
        self.tokens = nnx.Embed(config.vocab, width, dtype=dtype, rngs=rngs)
        self.layers = nnx.List([Lstm(width, width, dtype, rngs=rngs) for _ in range(config.layers)])
        self.output = nnx.Linear(width, config.vocab, dtype=dtype, rngs=rngs)

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        x_TBD = self.tokens(tokens_BT.T)
        for layer in self.layers:
            x_TBD, _ = layer(x_TBD)
        return jnp.swapaxes(self.output(x_TBD), 0, 1)


def build(config: Config) -> Example:
    """The train step; its batch is {'inputs', 'targets'}: int32 [B, T]."""
    return build_language("rnnlm", config, lambda rngs: Rnnlm(config, rngs=rngs))
