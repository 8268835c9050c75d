"""ResNet in linen with BatchNorm: bottleneck blocks (He et al. 2015), strides in their 3x3 (v1.5).

Shapes: B batch, H height, W width, C channels.
"""

import dataclasses
import functools
from typing import Any

import jax
from flax import linen as nn

from models.example import Example
from models.images import ImageConfig, build_normalized


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """stages: blocks in each stage; every stage after the first halves the image and doubles the channels.
    filters: of the first stage. stem: ImageNet's 7x7 convolution and pooling, in place of one 3x3."""

    stages: tuple[int, ...] = (1, 1)
    filters: int = 16
    stem: bool = False


_IMAGENET = Config(
    batch=256, image=224, stages=(3, 4, 6, 3), filters=64, classes=1000, stem=True, dtype="bfloat16"
)

CONFIGS = {
    "tiny": Config(learning_rate=3e-3),
    "resnet50": _IMAGENET,
    "resnet101": dataclasses.replace(_IMAGENET, stages=(3, 4, 23, 3)),
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
    return build_normalized("resnet", config, ResNet(config))
