"""A residual multi-layer perceptron that says which of its first inputs is the largest.

Shapes: B batch, I inputs, D width, F hidden width, C classes.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import normal

from models.example import Batch, Example, TrainConfig, must_divide
from models.layers import make_blocks, run_blocks
from models.train import cross_entropy, nnx_train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    """layers: residual blocks of two linears each. scan, remat: how the blocks run."""

    inputs: int = 64
    d_model: int = 64
    d_ff: int = 256
    layers: int = 2
    classes: int = 8
    scan: bool = False
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        must_divide("classes", self.classes, "inputs", self.inputs)


CONFIGS = {
    "tiny": Config(learning_rate=3e-3),
    "wide": Config(
        batch=8192,
        inputs=4096,
        d_model=8192,
        d_ff=32768,
        layers=4,
        classes=1024,
        dtype="bfloat16",
        learning_rate=1e-4,
    ),
}


class Block(nnx.Module):
    """x + down(relu(up(x)))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.up = nnx.Linear(config.d_model, config.d_ff, dtype=config.dtype, rngs=rngs)
        self.down = nnx.Linear(config.d_ff, config.d_model, dtype=config.dtype, rngs=rngs)

    def __call__(self, x_BD: jax.Array) -> jax.Array:
        return x_BD + self.down(nnx.relu(self.up(x_BD)))


class Mlp(nnx.Module):
    """[B, I] -> logits [B, C]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.config = config
        self.first = nnx.Linear(config.inputs, config.d_model, dtype=config.dtype, rngs=rngs)
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config.layers, config.scan, rngs)
        self.last = nnx.Linear(
            config.d_model, config.classes, dtype=config.dtype, kernel_init=normal(0.02), rngs=rngs
        )

    def __call__(self, x_BI: jax.Array) -> jax.Array:
        x_BD = run_blocks(self.blocks, self.first(x_BI), self.config.remat)
        return self.last(x_BD)


def build(config: Config) -> Example:
    """The MLP's train step; its batch is {'x': [B, I], 'labels': [B]}."""

    def loss_of(model: Mlp, batch: Batch) -> jax.Array:
        return cross_entropy(model(batch["x"]), batch["labels"])

    def make_batch(rng: np.random.Generator) -> Batch:
        x = rng.standard_normal((config.batch, config.inputs), np.float32)
        return {"x": x, "labels": x[:, : config.classes].argmax(-1).astype(np.int32)}

    init, step = nnx_train(config, lambda rngs: Mlp(config, rngs=rngs), loss_of)
    batch = {
        "x": jax.ShapeDtypeStruct((config.batch, config.inputs), jnp.float32),
        "labels": jax.ShapeDtypeStruct((config.batch,), jnp.int32),
    }
    return Example("mlp", config, init, step, batch, make_batch)
