"""AlexNet: five convolutions, three of them with pooling, and three linears that hold most of its weights.

Krizhevsky et al. 2012, as one tower, without dropout and without the normalisation across channels (of no use
according to Simonyan and Zisserman 2015).

Shapes: B batch, H height, W width, C channels, D features.
"""

import dataclasses

import jax
from flax import nnx

from models.example import Example
from models.images import ImageConfig, build_classifier


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """filters: of the five convolutions. hidden: width of the first two linears."""

    image: int = 67
    filters: tuple[int, int, int, int, int] = (16, 32, 32, 32, 32)
    hidden: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image < 67:
            raise ValueError(
                f"Setting 'image' is {self.image}, of which the poolings leave nothing; give 67 or more."
            )

    @property
    def last(self) -> int:
        """Pixels of a side after the last pooling."""
        side = (self.image - 11) // 4 + 1
        for _ in range(3):
            side = (side - 3) // 2 + 1
        return side


CONFIGS = {
    "tiny": Config(learning_rate=3e-3),
    "imagenet": Config(
        batch=128, image=227, filters=(96, 256, 384, 384, 256), hidden=4096, classes=1000, dtype="bfloat16"
    ),
}


class AlexNet(nnx.Module):
    """images [B, H, W, 3] -> logits [B, classes]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        def conv(inputs: int, outputs: int, side: int, stride: int = 1, padding: str = "SAME") -> nnx.Conv:
            return nnx.Conv(
                inputs, outputs, (side, side), stride, padding=padding, dtype=config.dtype, rngs=rngs
            )

        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, dtype=config.dtype, rngs=rngs)

        c1, c2, c3, c4, c5 = config.filters
        self.conv1, self.conv2 = conv(3, c1, 11, 4, "VALID"), conv(c1, c2, 5)
        self.conv3, self.conv4, self.conv5 = conv(c2, c3, 3), conv(c3, c4, 3), conv(c4, c5, 3)
        self.linear1 = linear(config.last**2 * c5, config.hidden)
        self.linear2 = linear(config.hidden, config.hidden)
        self.head = linear(config.hidden, config.classes)

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        x_BHWC = _pool(nnx.relu(self.conv1(x_BHWC)))
        x_BHWC = _pool(nnx.relu(self.conv2(x_BHWC)))
        x_BHWC = nnx.relu(self.conv4(nnx.relu(self.conv3(x_BHWC))))
        x_BHWC = _pool(nnx.relu(self.conv5(x_BHWC)))
        x_BD = x_BHWC.reshape(x_BHWC.shape[0], -1)
        x_BD = nnx.relu(self.linear2(nnx.relu(self.linear1(x_BD))))
        return self.head(x_BD)


def _pool(x_BHWC: jax.Array) -> jax.Array:
    """The largest of overlapping windows, which half as many pixels of a side remain of."""
    return nnx.max_pool(x_BHWC, (3, 3), (2, 2))


def build(config: Config) -> Example:
    """AlexNet's train step; its batch is {'images': [B, H, W, 3], 'labels': [B]}."""
    return build_classifier("alexnet", config, lambda rngs: AlexNet(config, rngs=rngs))
