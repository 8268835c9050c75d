"""Inception v3 in linen with BatchNorm: blocks of parallel branches, whose channels stand side by side.

Szegedy et al. 2016 (arXiv 1512.00567), its Table 1 and Figures 5 to 7 and 10, without the auxiliary head.

Shapes: B batch, H height, W width, C channels.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from models.example import Example
from models.images import ImageConfig, build_normalized

_Conv = Callable[..., Callable[[jax.Array], jax.Array]]  # (channels, window, ...) -> a layer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """percent: of the paper's channels that there are. first, middle, last: the blocks at each size of the
    image, by the channels that differ from block to block; a size without blocks is left out."""

    image: int = 75
    percent: int = 25
    first: tuple[int, ...] = (32,)
    middle: tuple[int, ...] = ()
    last: tuple[int, ...] = ()


CONFIGS = {
    "tiny": Config(learning_rate=3e-3),
    "imagenet": Config(
        batch=128, image=299, percent=100, first=(32, 64, 64), middle=(128, 160, 160, 192), last=(320, 320),
        classes=1000, dtype="bfloat16",
    ),
}  # fmt: skip


class Conv(nn.Module):
    """Convolution, BatchNorm and relu."""

    channels: int
    window: tuple[int, int]
    stride: int = 1
    padding: str = "SAME"
    dtype: Any = None
    train: bool = True

    @nn.compact
    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        x_BHWC = nn.Conv(self.channels, self.window, strides, self.padding, use_bias=False, dtype=self.dtype)(
            x_BHWC
        )
        norm = nn.BatchNorm(use_running_average=not self.train, momentum=0.9, epsilon=1e-3, dtype=self.dtype)
        return nn.relu(norm(x_BHWC))


def first_block(conv: _Conv, x_BHWC: jax.Array, pooled: int) -> jax.Array:
    """Figure 5: 1x1, 5x5, two 3x3, and pooling with `pooled` channels."""
    return _joined(
        conv(64, (1, 1))(x_BHWC),
        conv(64, (5, 5))(conv(48, (1, 1))(x_BHWC)),
        conv(96, (3, 3))(conv(96, (3, 3))(conv(64, (1, 1))(x_BHWC))),
        conv(pooled, (1, 1))(_mean(x_BHWC)),
    )


def middle_block(conv: _Conv, x_BHWC: jax.Array, between: int) -> jax.Array:
    """Figure 6: 1x1, a 7x7 and two 7x7 as 1x7 and 7x1 of `between` channels, and pooling."""
    once = conv(between, (1, 7))(conv(between, (1, 1))(x_BHWC))
    twice = conv(between, (1, 7))(conv(between, (7, 1))(conv(between, (1, 1))(x_BHWC)))
    return _joined(
        conv(192, (1, 1))(x_BHWC),
        conv(192, (7, 1))(once),
        conv(192, (1, 7))(conv(between, (7, 1))(twice)),
        conv(192, (1, 1))(_mean(x_BHWC)),
    )


def last_block(conv: _Conv, x_BHWC: jax.Array, single: int) -> jax.Array:
    """Figure 7: 1x1 of `single` channels, a 3x3 as 1x3 beside 3x1, the same after a 3x3, and pooling."""
    once = conv(384, (1, 1))(x_BHWC)
    twice = conv(384, (3, 3))(conv(448, (1, 1))(x_BHWC))
    return _joined(
        conv(single, (1, 1))(x_BHWC),
        *(conv(384, window)(branch) for branch in (once, twice) for window in ((1, 3), (3, 1))),
        conv(192, (1, 1))(_mean(x_BHWC)),
    )


def to_middle(conv: _Conv, x_BHWC: jax.Array) -> jax.Array:
    """Figure 10: the image halved by a 3x3, by two 3x3, and by pooling."""
    doubled = conv(96, (3, 3))(conv(64, (1, 1))(x_BHWC))
    return _joined(
        conv(384, (3, 3), 2, "VALID")(x_BHWC), conv(96, (3, 3), 2, "VALID")(doubled), _largest(x_BHWC)
    )


def to_last(conv: _Conv, x_BHWC: jax.Array) -> jax.Array:
    """The image halved by a 3x3, by a 3x3 after a 7x7 as 1x7 and 7x1, and by pooling."""
    wide = conv(192, (7, 1))(conv(192, (1, 7))(conv(192, (1, 1))(x_BHWC)))
    return _joined(
        conv(320, (3, 3), 2, "VALID")(conv(192, (1, 1))(x_BHWC)),
        conv(192, (3, 3), 2, "VALID")(wide),
        _largest(x_BHWC),
    )


def _joined(*branches_BHWC: jax.Array) -> jax.Array:
    return jnp.concatenate(branches_BHWC, -1)


def _largest(x_BHWC: jax.Array) -> jax.Array:
    return nn.max_pool(x_BHWC, (3, 3), (2, 2))


def _mean(x_BHWC: jax.Array) -> jax.Array:
    return nn.avg_pool(x_BHWC, (3, 3), (1, 1), "SAME")


class Inception(nn.Module):
    """images [B, H, W, 3] -> logits [B, classes]."""

    config: Config

    @nn.compact
    def __call__(self, x_BHWC: jax.Array, train: bool) -> jax.Array:
        config = self.config

        def conv(channels: int, *rest: Any) -> Conv:
            return Conv(channels * config.percent // 100, *rest, dtype=config.dtype, train=train)

        x_BHWC = conv(32, (3, 3), 1, "VALID")(conv(32, (3, 3), 2, "VALID")(x_BHWC))
        x_BHWC = _largest(conv(64, (3, 3))(x_BHWC))
        x_BHWC = _largest(conv(192, (3, 3), 1, "VALID")(conv(80, (1, 1))(x_BHWC)))
        stages = (
            (None, first_block, config.first),
            (to_middle, middle_block, config.middle),
            (to_last, last_block, config.last),
        )
        for shrink, block, widths in stages:
            if shrink and widths:
                x_BHWC = shrink(conv, x_BHWC)
            for width in widths:
                x_BHWC = block(conv, x_BHWC, width)
        x_BC = x_BHWC.mean((1, 2))
        return nn.Dense(config.classes, dtype=config.dtype, name="head")(x_BC)


def build(config: Config) -> Example:
    """Inception's train step; its batch is {'images': [B, H, W, 3], 'labels': [B]}."""
    return build_normalized("inception_v3", config, Inception(config))
