"""What the image models share: their settings, batches of striped noise, and train steps.

Shapes: B batch, H height, W width, C channels.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from models.example import Batch, Example, Metrics, State, TrainConfig
from models.train import cross_entropy, new_state, nnx_train, optimizer_of, updated


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(TrainConfig):
    """image: pixels of a side."""

    image: int = 32
    classes: int = 16


def build_classifier(name: str, config: ImageConfig, model_of: Callable[[nnx.Rngs], nnx.Module]) -> Example:
    """The train step of an NNX model: images [B, H, W, 3] -> logits [B, classes]."""

    def loss_of(model: Any, batch: Batch) -> jax.Array:
        return cross_entropy(model(batch["images"]), batch["labels"])

    init, step = nnx_train(config, model_of, loss_of)
    return Example(name, config, init, step, image_batch(config), lambda rng: stripes(rng, config))


def build_normalized(name: str, config: ImageConfig, model: nn.Module) -> Example:
    """The train step of a linen model with BatchNorm, called as `model(images, train)`.

    The batch statistics are state of the step beside the parameters, as in Flax's own ImageNet example.
    """
    optimizer = optimizer_of(config)
    example = image_batch(config)["images"]

    def init(key: jax.Array) -> State:
        variables = model.init(key, jnp.zeros((1, *example.shape[1:])), train=False)
        return new_state(optimizer, variables["params"], batch_stats=variables["batch_stats"])

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state["batch_stats"]}
            logits, news = model.apply(variables, batch["images"], train=True, mutable=["batch_stats"])
            return cross_entropy(logits, batch["labels"]), news["batch_stats"]

        (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        return updated(optimizer, state, grads, batch_stats=batch_stats), {"loss": loss}

    return Example(name, config, init, step, image_batch(config), lambda rng: stripes(rng, config))


def image_batch(config: ImageConfig) -> Batch:
    """The shapes of a batch of `stripes`: {'images': [B, H, W, 3], 'labels': [B]}."""
    return {
        "images": jax.ShapeDtypeStruct((config.batch, config.image, config.image, 3), jnp.float32),
        "labels": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }


def stripes(rng: np.random.Generator, config: ImageConfig) -> Batch:
    """Noise with faint stripes across the image, as many as the label says."""
    labels = rng.integers(0, config.classes, size=config.batch).astype(np.int32)
    rows = np.arange(config.image, dtype=np.float32) / config.image
    waves = np.sin(2 * np.pi * labels[:, None] * rows)[:, :, None, None]
    noise = rng.standard_normal((config.batch, config.image, config.image, 3), np.float32)
    return {"images": (noise + waves).astype(np.float32), "labels": labels}
