"""A diffusion step: noise of a random strength is added to images, and a U-Net says which.

Ho et al. 2020 (arXiv 2006.11239), its model for CIFAR-10, without dropout and without a bias of the keys,
whose gradient would be nothing but rounding. Noise and times come from the number of the step, so that the
step is a function of its arguments alone.

Shapes: B batch, H height, W width, C channels, T pixels as a sequence, E features of the time.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import zeros

from models.example import Batch, Example, Metrics, State, TrainConfig, must_divide
from models.layers import attention
from models.train import new_state, optimizer_of, updated

_TIMES = 1000  # strengths of noise, from hardly any to nothing else
_SEED = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    """image: pixels of a side. filters: channels of the first level, times `widths` those of each level;
    every level after the first halves the image. blocks: of each level. attend: the side at which pixels
    attend to each other, as they do in the middle of the network. groups: of channels with one norm."""

    image: int = 16
    filters: int = 16
    widths: tuple[int, ...] = (1, 2)
    blocks: int = 1
    attend: int = 4
    groups: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        must_divide("groups", self.groups, "filters", self.filters)
        must_divide("widths", 2 ** (len(self.widths) - 1), "image", self.image)


CONFIGS = {
    "tiny": Config(learning_rate=2e-3),
    "cifar10": Config(
        batch=128, image=32, filters=128, widths=(1, 2, 2, 2), blocks=2, attend=16, groups=32,
        learning_rate=2e-4,
    ),
}  # fmt: skip


class Block(nnx.Module):
    """Two convolutions around which the input is added; the time's features are added between them."""

    def __init__(self, inputs: int, outputs: int, config: Config, *, rngs: nnx.Rngs):
        self.norm1 = _norm(inputs, config, rngs)
        self.conv1 = _conv(inputs, outputs, config, rngs)
        self.time = nnx.Linear(4 * config.filters, outputs, dtype=config.dtype, rngs=rngs)
        self.norm2 = _norm(outputs, config, rngs)
        self.conv2 = _conv(outputs, outputs, config, rngs)
        self.project = _conv(inputs, outputs, config, rngs, side=1) if inputs != outputs else None

    def __call__(self, x_BHWC: jax.Array, time_BE: jax.Array) -> jax.Array:
        y_BHWC = self.conv1(nnx.silu(self.norm1(x_BHWC)))
        y_BHWC = y_BHWC + self.time(nnx.silu(time_BE))[:, None, None]
        y_BHWC = self.conv2(nnx.silu(self.norm2(y_BHWC)))
        return y_BHWC + (x_BHWC if self.project is None else self.project(x_BHWC))


class Attention(nnx.Module):
    """x + attention of every pixel to all, with one head."""

    def __init__(self, width: int, config: Config, *, rngs: nnx.Rngs):
        def linear(bias: bool = True) -> nnx.Linear:
            return nnx.Linear(width, width, use_bias=bias, dtype=config.dtype, rngs=rngs)

        self.norm = _norm(width, config, rngs)
        self.q, self.k, self.v, self.o = linear(), linear(bias=False), linear(), linear()

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        h_BHWC = self.norm(x_BHWC)
        h_BTC = h_BHWC.reshape(h_BHWC.shape[0], -1, h_BHWC.shape[-1])
        q_BT1C, k_BT1C, v_BT1C = (proj(h_BTC)[:, :, None] for proj in (self.q, self.k, self.v))
        return x_BHWC + self.o(attention(q_BT1C, k_BT1C, v_BT1C)[:, :, 0]).reshape(x_BHWC.shape)


class Level(nnx.Module):
    """Some blocks at one size of the image, each followed by attention where the level attends."""

    def __init__(self, inputs: list[int], outputs: int, side: int, config: Config, *, rngs: nnx.Rngs):
        self.blocks = nnx.List([Block(width, outputs, config, rngs=rngs) for width in inputs])
        attends = len(inputs) if side == config.attend else 0
        self.attention = nnx.List([Attention(outputs, config, rngs=rngs) for _ in range(attends)])

    def block(self, index: int, x_BHWC: jax.Array, time_BE: jax.Array) -> jax.Array:
        """One of the blocks and its attention."""
        x_BHWC = self.blocks[index](x_BHWC, time_BE)
        return self.attention[index](x_BHWC) if len(self.attention) else x_BHWC


class UNet(nnx.Module):
    """Noisy images [B, H, W, 3] and their times [B] -> the noise [B, H, W, 3]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, dtype=config.dtype, rngs=rngs)

        self.config = config
        first, sides = config.filters, [config.image >> level for level in range(len(config.widths))]
        widths = [first * width for width in config.widths]
        self.time1, self.time2 = linear(first, 4 * first), linear(4 * first, 4 * first)
        self.stem = _conv(3, first, config, rngs)
        kept, x = [first], first  # channels of what the way up will read, and of what goes on
        downs, shrinks = [], []
        for level, (width, side) in enumerate(zip(widths, sides, strict=True)):
            downs.append(Level([x] + [width] * (config.blocks - 1), width, side, config, rngs=rngs))
            x = width
            kept += [width] * config.blocks
            if level + 1 < len(widths):
                shrinks.append(_conv(width, width, config, rngs, stride=2))
                kept.append(width)
        self.middle1, self.middle2 = (Block(x, x, config, rngs=rngs) for _ in range(2))
        self.attention = Attention(x, config, rngs=rngs)
        ups, grows = [], []
        for level, (width, side) in reversed(list(enumerate(zip(widths, sides, strict=True)))):
            inputs = [kept.pop() + (width if block else x) for block in range(config.blocks + 1)]
            ups.append(Level(inputs, width, side, config, rngs=rngs))
            x = width
            if level:
                grows.append(_conv(width, width, config, rngs))
        self.downs, self.shrinks, self.ups, self.grows = map(nnx.List, (downs, shrinks, ups, grows))
        self.norm = _norm(x, config, rngs)
        self.head = nnx.Conv(x, 3, (3, 3), dtype=config.dtype, kernel_init=zeros, rngs=rngs)

    def __call__(self, x_BHWC: jax.Array, time_B: jax.Array) -> jax.Array:
        time_BE = self.time2(nnx.silu(self.time1(_waves(time_B, self.config.filters))))
        x_BHWC = self.stem(x_BHWC)
        kept = [x_BHWC]
        for level, down in enumerate(self.downs):
            for index in range(self.config.blocks):
                x_BHWC = down.block(index, x_BHWC, time_BE)
                kept.append(x_BHWC)
            if level < len(self.shrinks):
                x_BHWC = self.shrinks[level](x_BHWC)
                kept.append(x_BHWC)
        x_BHWC = self.attention(self.middle1(x_BHWC, time_BE))
        x_BHWC = self.middle2(x_BHWC, time_BE)
        for level, up in enumerate(self.ups):
            for index in range(self.config.blocks + 1):
                x_BHWC = up.block(index, jnp.concatenate([x_BHWC, kept.pop()], -1), time_BE)
            if level < len(self.grows):
                x_BHWC = self.grows[level](_doubled(x_BHWC))
        return self.head(nnx.silu(self.norm(x_BHWC)))


def _norm(width: int, config: Config, rngs: nnx.Rngs) -> nnx.GroupNorm:
    return nnx.GroupNorm(width, config.groups, dtype=config.dtype, rngs=rngs)


def _conv(
    inputs: int, outputs: int, config: Config, rngs: nnx.Rngs, side: int = 3, stride: int = 1
) -> nnx.Conv:
    return nnx.Conv(inputs, outputs, (side, side), stride, dtype=config.dtype, rngs=rngs)


def _waves(time_B: jax.Array, width: int) -> jax.Array:
    """Sines and cosines of the times, with wavelengths from 2 pi to 10,000 times that. -> [B, width]."""
    frequency_e = 10_000.0 ** (-jnp.arange(width // 2) / (width // 2 - 1))
    angle_Be = time_B[:, None] * frequency_e
    return jnp.concatenate([jnp.sin(angle_Be), jnp.cos(angle_Be)], -1)


def _doubled(x_BHWC: jax.Array) -> jax.Array:
    """Every pixel four times. -> [B, 2 H, 2 W, C]."""
    batch, height, width, channels = x_BHWC.shape
    x_BH2W2C = jnp.broadcast_to(x_BHWC[:, :, None, :, None], (batch, height, 2, width, 2, channels))
    return x_BH2W2C.reshape(batch, 2 * height, 2 * width, channels)


def build(config: Config) -> Example:
    """The train step; its batch is {'images': [B, H, W, 3]}."""
    optimizer = optimizer_of(config)
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: UNet(config, rngs=nnx.Rngs(0))))
    shape = (config.batch, config.image, config.image, 3)

    def init(key: jax.Array) -> State:
        return new_state(optimizer, nnx.to_pure_dict(nnx.state(UNet(config, rngs=nnx.Rngs(key)), nnx.Param)))

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        of_noise, of_time = jax.random.split(jax.random.fold_in(jax.random.key(_SEED), state["step"]))
        noise_BHWC = jax.random.normal(of_noise, shape)
        time_B = jax.random.randint(of_time, (config.batch,), 0, _TIMES)
        # What is left of the image falls to nothing as the betas of the paper, 1e-4 to 0.02, add up.
        kept_T = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, _TIMES))
        kept_B111 = kept_T[time_B][:, None, None, None]
        noisy_BHWC = jnp.sqrt(kept_B111) * batch["images"] + jnp.sqrt(1 - kept_B111) * noise_BHWC

        def loss_of(params: State) -> jax.Array:
            found_BHWC = nnx.merge(graphdef, params)(noisy_BHWC, time_B)
            return jnp.square(found_BHWC.astype(jnp.float32) - noise_BHWC).mean()

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        return updated(optimizer, state, grads), {"loss": loss}

    def make_batch(rng: np.random.Generator) -> Batch:
        """Smooth images: a wave in a random direction for each channel."""
        across = np.arange(config.image, dtype=np.float32) * (np.pi / config.image)
        a, b, shift = rng.uniform(-3, 3, (3, config.batch, 1, 1, 3)).astype(np.float32)
        angle = a * across[:, None, None] + b * across[:, None] + shift
        return {"images": np.sin(angle)}

    return Example(
        "unet", config, init, step, {"images": jax.ShapeDtypeStruct(shape, jnp.float32)}, make_batch
    )
