"""ResNet in linen with BatchNorm: bottleneck blocks (He et al. 2015), strides in their 3x3 (v1.5).

The batch statistics are state of the step beside the parameters, as in Flax's own ImageNet example.

Shapes: B batch, H height, W width, C channels.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from models.example import Batch, Example, Metrics, State, TrainConfig
from models.train import cross_entropy, new_state, optimizer_of, updated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    """image: pixels of a side. stages: blocks in each stage; every stage after the first halves the image and
    doubles the channels. filters: of the first stage. stem: the 7x7 convolution and the pooling of ImageNet,
    in place of one 3x3."""

    image: int = 32
    stages: tuple[int, ...] = (1, 1)
    filters: int = 16
    classes: int = 16
    stem: bool = False


CONFIGS = {
    "tiny": Config(learning_rate=3e-3),
    "resnet50": Config(
        batch=256, image=224, stages=(3, 4, 6, 3), filters=64, classes=1000, stem=True, dtype="bfloat16"
    ),
}


class Block(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around which the input is added."""

    filters: int
    stride: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        y_BHWC = nn.relu(self.norm()(self.conv(self.filters, (1, 1))(x_BHWC)))
        y_BHWC = nn.relu(self.norm()(self.conv(self.filters, (3, 3), strides)(y_BHWC)))
        y_BHWC = self.conv(4 * self.filters, (1, 1))(y_BHWC)
        # A block starts as the identity, which lets deep stacks of them train (Goyal et al. 2017).
        y_BHWC = self.norm(scale_init=nn.initializers.zeros_init())(y_BHWC)
        if x_BHWC.shape != y_BHWC.shape:
            x_BHWC = self.conv(4 * self.filters, (1, 1), strides, name="project")(x_BHWC)
            x_BHWC = self.norm(name="project_norm")(x_BHWC)
        return nn.relu(x_BHWC + y_BHWC)


class ResNet(nn.Module):
    """images [B, H, W, 3] -> logits [B, classes]."""

    config: Config

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, train: bool) -> jax.Array:
        config = self.config
        conv = functools.partial(nn.Conv, use_bias=False, dtype=config.dtype)
        norm = functools.partial(
            nn.BatchNorm, use_running_average=not train, momentum=0.9, epsilon=1e-5, dtype=config.dtype
        )
        if config.stem:
            x_BHWC = nn.relu(norm()(conv(config.filters, (7, 7), (2, 2), name="stem")(x_BHWC)))
            x_BHWC = nn.max_pool(x_BHWC, (3, 3), (2, 2), padding="SAME")
        else:
            x_BHWC = nn.relu(norm()(conv(config.filters, (3, 3), name="stem")(x_BHWC)))
        for stage, blocks in enumerate(config.stages):
            for index in range(blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                x_BHWC = Block(config.filters * 2**stage, stride, conv, norm)(x_BHWC)
        x_BC = x_BHWC.mean((1, 2))
        return nn.Dense(config.classes, dtype=config.dtype, name="head")(x_BC)


def build(config: Config) -> Example:
    """ResNet's train step; its batch is {'images': [B, H, W, 3], 'labels': [B]}."""
    model, optimizer = ResNet(config), optimizer_of(config)
    shape = (config.batch, config.image, config.image, 3)

    def init(key: jax.Array) -> State:
        variables = model.init(key, jnp.zeros((1, *shape[1:])), train=False)
        return new_state(optimizer, variables["params"], batch_stats=variables["batch_stats"])

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state["batch_stats"]}
            logits, news = model.apply(variables, batch["images"], train=True, mutable=["batch_stats"])
            return cross_entropy(logits, batch["labels"]), news["batch_stats"]

        (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        return updated(optimizer, state, grads, batch_stats=batch_stats), {"loss": loss}

    def make_batch(rng: np.random.Generator) -> Batch:
        return _stripes(rng, shape, config.classes)

    batch = {
        "images": jax.ShapeDtypeStruct(shape, jnp.float32),
        "labels": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    return Example("resnet", config, init, step, batch, make_batch)


def _stripes(rng: np.random.Generator, shape: tuple[int, ...], classes: int) -> Batch:
    """Noise with faint stripes across the image, as many as the label says."""
    labels = rng.integers(0, classes, size=shape[0]).astype(np.int32)
    rows = np.arange(shape[1], dtype=np.float32) / shape[1]
    stripes = np.sin(2 * np.pi * labels[:, None] * rows)[:, :, None, None]
    noise = rng.standard_normal(shape, np.float32)
    return {"images": (noise + stripes).astype(np.float32), "labels": labels}
