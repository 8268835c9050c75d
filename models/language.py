"""What the language models share: their settings, their loss, and batches of text."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models import text
from models.example import Batch, Example, TrainConfig
from models.train import cross_entropy, nnx_train


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig(TrainConfig):
    """seq: tokens in a sample."""

    seq: int = 64
    vocab: int = text.VOCABULARY
    layers: int = 2
    d_model: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab < text.VOCABULARY:
            raise ValueError(
                f"Setting 'vocab' is {self.vocab}, but the text is bytes; give {text.VOCABULARY} or more."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(TextConfig):
    """scan: one loop over stacked layers instead of a copy of the code for each. remat: keep only each
    layer's input for the backward pass, and compute the rest again."""

    scan: bool = False
    remat: bool = False


def next_token_loss(model: Any, batch: Batch) -> jax.Array:
    """Cross-entropy of the targets under the logits of the inputs."""
    return cross_entropy(model(batch["inputs"]), batch["targets"])


def build_language(
    name: str,
    config: TextConfig,
    model_of: Callable[[nnx.Rngs], nnx.Module],
    loss_of: Callable[[Any, Batch], jax.Array] = next_token_loss,
) -> Example:
    """The train step of next-token prediction; the batch is {'inputs', 'targets'}: int32 [batch, seq]."""

    def make_batch(rng: np.random.Generator) -> Batch:
        return dict(text.sample(rng, config.batch, config.seq))

    init, step = nnx_train(config, model_of, loss_of)
    tokens = jax.ShapeDtypeStruct((config.batch, config.seq), jnp.int32)
    return Example(name, config, init, step, {"inputs": tokens, "targets": tokens}, make_batch)
