"""A classifier of texts: embedding, LSTM layers, and a linear on the last one's last output.

The RNNTC that FlexFlow plans (Jia et al. 2019): four recurrent layers and a softmax.

Shapes: B batch, T time, D width.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import text
from models.example import Batch, Example
from models.language import TextConfig
from models.lstm import Lstm
from models.train import cross_entropy, nnx_train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    """layers: of width d_model, a loop over time each."""

    seq: int = 16
    classes: int = 8


CONFIGS = {
    "tiny": Config(learning_rate=1e-2),
    "flexflow": Config(batch=64, seq=40, vocab=20_000, layers=4, d_model=1024, classes=2),
}


class Rnntc(nnx.Module):
    """tokens [B, T] -> logits [B, classes]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, dtype = config.d_model, config.dtype
        self.tokens = nnx.Embed(config.vocab, width, dtype=dtype, rngs=rngs)
        self.layers = nnx.List([Lstm(width, width, dtype, rngs=rngs) for _ in range(config.layers)])
        self.output = nnx.Linear(width, config.classes, dtype=dtype, rngs=rngs)

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        x_TBD = self.tokens(tokens_BT.T)
        last_BD = x_TBD[-1]
        for layer in self.layers:
            x_TBD, (last_BD, _) = layer(x_TBD)
        return self.output(last_BD)


def build(config: Config) -> Example:
    """The train step; its batch is {'tokens': int32 [B, T], 'labels': int32 [B]}."""

    def loss_of(model: Rnntc, batch: Batch) -> jax.Array:
        return cross_entropy(model(batch["tokens"]), batch["labels"])

    def make_batch(rng: np.random.Generator) -> Batch:
        """Real text; its class is that of its last byte, of which the low bits tell it."""
        tokens = text.sample(rng, config.batch, config.seq)["inputs"]
        return {"tokens": tokens, "labels": tokens[:, -1] % config.classes}

    init, step = nnx_train(config, lambda rngs: Rnntc(config, rngs=rngs), loss_of)
    batch = {
        "tokens": jax.ShapeDtypeStruct((config.batch, config.seq), jnp.int32),
        "labels": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    return Example("rnntc", config, init, step, batch, make_batch)
