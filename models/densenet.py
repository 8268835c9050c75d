"""DenseNet in linen with BatchNorm: every layer reads what all layers of its stage before it have made.

Huang et al. 2017 (arXiv 1608.06993), DenseNet-BC, sizes of its Table 1.

Shapes: B batch, H height, W width, C channels.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.example import Example
from models.images import ImageConfig, build_normalized


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """stages: layers in each stage; between two stages the image and the channels are halved. growth:
    channels that a layer adds. stem: ImageNet's 7x7 convolution and pooling, in place of one 3x3."""

    stages: tuple[int, ...] = (2, 2)
    growth: int = 8
    stem: bool = False


_IMAGENET = Config(batch=256, image=224, growth=32, classes=1000, stem=True, dtype="bfloat16")

CONFIGS = {
    "tiny": Config(learning_rate=3e-3),
    "densenet121": dataclasses.replace(_IMAGENET, stages=(6, 12, 24, 16)),
    "densenet169": dataclasses.replace(_IMAGENET, stages=(6, 12, 32, 32)),
    "densenet201": dataclasses.replace(_IMAGENET, stages=(6, 12, 48, 32)),
}


class Layer(nn.Module):
    """The input with `growth` channels more, by a 1x1 and a 3x3 convolution."""

    growth: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        y_BHWC = self.conv(4 * self.growth, (1, 1))(nn.relu(self.norm()(x_BHWC)))
        y_BHWC = self.conv(self.growth, (3, 3))(nn.relu(self.norm()(y_BHWC)))
        return jnp.concatenate([x_BHWC, y_BHWC], -1)


class DenseNet(nn.Module):
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
            x_BHWC = nn.relu(norm()(conv(2 * config.growth, (7, 7), (2, 2), name="stem")(x_BHWC)))
            x_BHWC = nn.max_pool(x_BHWC, (3, 3), (2, 2), padding="SAME")
        else:
            x_BHWC = conv(2 * config.growth, (3, 3), name="stem")(x_BHWC)
        for stage, layers in enumerate(config.stages):
            if stage > 0:
                x_BHWC = conv(x_BHWC.shape[-1] // 2, (1, 1))(nn.relu(norm()(x_BHWC)))
                x_BHWC = nn.avg_pool(x_BHWC, (2, 2), (2, 2))
            for _ in range(layers):
                x_BHWC = Layer(config.growth, conv, norm)(x_BHWC)
        x_BC = nn.relu(norm()(x_BHWC)).mean((1, 2))
        return nn.Dense(config.classes, dtype=config.dtype, name="head")(x_BC)


def build(config: Config) -> Example:
    """DenseNet's train step; its batch is {'images': [B, H, W, 3], 'labels': [B]}."""
    return build_normalized("densenet", config, DenseNet(config))
