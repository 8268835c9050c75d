"""Vision Transformer: an image as a sequence of square patches, and a Transformer's encoder over them.

Dosovitskiy et al. 2021 (arXiv 2010.11929), sizes of its Table 1; without a bias of the keys, whose gradient
would be nothing but rounding. Without a class token the logits come from the mean over the patches
(Beyer et al. 2022, arXiv 2205.01580).

Shapes: B batch, H height, W width, C channels, T patches, D width, F hidden width, E width of a head.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import normal

from models.example import Example, must_divide
from models.images import ImageConfig, build_classifier
from models.layers import attention, make_blocks, merge_heads, run_blocks, split_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """patch: pixels of a side. class_token: a learned first position that the logits are read from. scan,
    remat: how the blocks run. The hidden width of the MLP is 4 d_model."""

    patch: int = 8
    layers: int = 2
    d_model: int = 64
    heads: int = 8
    class_token: bool = False
    scan: bool = False
    remat: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        must_divide("patch", self.patch, "image", self.image)
        must_divide("heads", self.heads, "d_model", self.d_model)

    @property
    def positions(self) -> int:
        """Length of the sequence."""
        return (self.image // self.patch) ** 2 + self.class_token


_IMAGENET = Config(batch=4096, image=224, patch=16, classes=1000, class_token=True, dtype="bfloat16")

CONFIGS = {
    "tiny": Config(),
    "vit_b16": dataclasses.replace(_IMAGENET, layers=12, d_model=768, heads=12),
    "vit_l16": dataclasses.replace(_IMAGENET, layers=24, d_model=1024, heads=16),
    "vit_h14": dataclasses.replace(_IMAGENET, patch=14, layers=32, d_model=1280, heads=16, remat=True),
}


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        def linear(inputs: int, outputs: int, bias: bool = True) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, use_bias=bias, dtype=config.dtype, rngs=rngs)

        width = config.d_model
        self.heads = config.heads
        self.norm1 = nnx.LayerNorm(width, dtype=config.dtype, rngs=rngs)
        self.q, self.k, self.v = linear(width, width), linear(width, width, bias=False), linear(width, width)
        self.o = linear(width, width)
        self.norm2 = nnx.LayerNorm(width, dtype=config.dtype, rngs=rngs)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        h_BTD = self.norm1(x_BTD)
        q_BTHE, k_BTHE, v_BTHE = (split_heads(proj(h_BTD), self.heads) for proj in (self.q, self.k, self.v))
        x_BTD = x_BTD + self.o(merge_heads(attention(q_BTHE, k_BTHE, v_BTHE)))
        return x_BTD + self.down(nnx.gelu(self.up(self.norm2(x_BTD))))


class ViT(nnx.Module):
    """images [B, H, W, 3] -> logits [B, classes]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width, dtype, side = config.d_model, config.dtype, (config.patch, config.patch)
        self.remat = config.remat
        self.patches = nnx.Conv(3, width, side, side, padding="VALID", dtype=dtype, rngs=rngs)
        self.positions = nnx.Param(normal(0.02)(rngs.params(), (config.positions, width), jnp.float32))
        self.token = nnx.Param(jnp.zeros((1, 1, width))) if config.class_token else None
        self.blocks = make_blocks(lambda rngs: Block(config, rngs=rngs), config.layers, config.scan, rngs)
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(width, config.classes, dtype=dtype, kernel_init=normal(0.02), rngs=rngs)

    def __call__(self, x_BHWC: jax.Array) -> jax.Array:
        x_BHWD = self.patches(x_BHWC)
        x_BTD = x_BHWD.reshape(x_BHWD.shape[0], -1, x_BHWD.shape[-1])
        if self.token is not None:
            token_B1D = jnp.broadcast_to(self.token[...], (x_BTD.shape[0], 1, x_BTD.shape[-1]))
            x_BTD = jnp.concatenate([token_B1D.astype(x_BTD.dtype), x_BTD], axis=1)
        x_BTD = x_BTD + self.positions[...].astype(x_BTD.dtype)
        x_BTD = self.norm(run_blocks(self.blocks, x_BTD, self.remat))
        return self.head(x_BTD.mean(1) if self.token is None else x_BTD[:, 0])


def build(config: Config) -> Example:
    """ViT's train step; its batch is {'images': [B, H, W, 3], 'labels': [B]}."""
    return build_classifier("vit", config, lambda rngs: ViT(config, rngs=rngs))
