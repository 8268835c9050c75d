"""What the translators share: their settings, their loss, and batches of a simple language."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import text
from models.example import Batch, Example
from models.language import TextConfig
from models.train import cross_entropy, nnx_train


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationConfig(TextConfig):
    """seq: tokens of a source and of a target. layers: of the encoder, and of the decoder. smoothing: share
    of the target's probability that all words get alike (Szegedy et al. 2015)."""

    seq: int = 32
    smoothing: float = 0.0


def build_translation(
    name: str, config: TranslationConfig, model_of: Callable[[nnx.Rngs], nnx.Module]
) -> Example:
    """The train step of next-word prediction given a source; the batch is {'sources', 'inputs', 'targets'}:
    int32 [batch, seq]."""

    def loss_of(model: Any, batch: Batch) -> jax.Array:
        logits = model(batch["sources"], batch["inputs"]).astype(jnp.float32)
        loss = cross_entropy(logits, batch["targets"])
        if config.smoothing:
            alike = (jax.nn.logsumexp(logits, axis=-1) - logits.mean(-1)).mean()
            loss = (1 - config.smoothing) * loss + config.smoothing * alike
        return loss

    def make_batch(rng: np.random.Generator) -> Batch:
        """Real text; the other language is the same with every byte's bits turned round."""
        batch = text.sample(rng, config.batch, config.seq)
        return {"sources": text.VOCABULARY - 1 - batch["targets"], **batch}

    init, step = nnx_train(config, model_of, loss_of)
    tokens = jax.ShapeDtypeStruct((config.batch, config.seq), jnp.int32)
    batch = {"sources": tokens, "inputs": tokens, "targets": tokens}
    return Example(name, config, init, step, batch, make_batch)
