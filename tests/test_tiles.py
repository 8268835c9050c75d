"""Which dims of a value lie in the tiles of a TPU, as measured on ResNet's step."""

import jax
import jax.numpy as jnp
from jax import lax
from pipeline import graph_of

from planner.cost.memory import stored_bytes
from planner.graph.buffers import buffers
from planner.graph.graph import Graph, Value
from planner.graph.tiles import dims_in_tiles

NHWC = ("NHWC", "HWIO", "NHWC")


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def conv(x, w, stride: int = 1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC)


def made_by(graph: Graph, primitive: str) -> int:
    (op,) = (op for op in graph.ops if op.primitive == primitive)
    return op.results[0]


def test_batch_and_features_lie_in_tiles_and_no_dim_that_a_window_slides_over():
    """Also of what is made of a convolution's result, element by element, or by pooling; and of no sum."""

    def step(x, w):
        y = jnp.sin(conv(x, w))
        pooled = lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return pooled, y.reshape(16, -1), jnp.exp(jnp.sum(y, axis=0))

    graph = graph_of(step, bf16(16, 56, 56, 64), bf16(3, 3, 64, 64))
    found = dims_in_tiles(graph)
    images, filters = (leaf.value for leaf in graph.arguments)
    assert found[images] == found[made_by(graph, "sin")] == (0, 3)
    assert found[made_by(graph, "reduce_window_max")] == (0, 3)
    assert found[filters] == (2, 3)
    assert made_by(graph, "reshape") not in found
    assert made_by(graph, "exp") not in found


def test_bytes_of_what_lies_so():
    """Of ResNet's step on 16 TPUs v5e: bf16[16,112,112,64]{3,0,2,1:T(8,128)(2,1)} takes 51.4 MB, twice its
    numbers, and the images, bf16[16,224,224,3]{0,3,2,1:T(4,128)(2,1)}, as much: batch is across, there."""

    def stored(*shape: int, tiled: tuple[int, int] | None = None) -> float:
        return stored_bytes(Value(0, shape, "bfloat16", 2), ((),) * len(shape), {}, "tpu", tiled)

    assert stored(16, 112, 112, 64, tiled=(0, 3)) == 51_380_224
    assert stored(16, 224, 224, 3, tiled=(0, 3)) == 51_380_224
    assert stored(16, 56, 56, 256, tiled=(0, 3)) == 25_690_112
    assert stored(16, 112, 112, 64) < 30_000_000


def test_images_are_copied_for_a_convolution_and_filters_are_not():
    """ResNet's stem reads its images, rounded to bfloat16 and laid out anew, in both passes from one copy."""

    def step(w, x):
        def loss(w):
            return conv(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)).astype(jnp.float32).var()

        return jax.grad(loss)(w)

    f32 = jax.ShapeDtypeStruct
    graph = graph_of(step, f32((7, 7, 3, 64), jnp.float32), f32((16, 32, 32, 3), jnp.float32))
    held = {graph.values[value].shape: interval for value, interval in buffers(graph).items()}
    forward, backward = (i for i, op in enumerate(graph.ops) if op.primitive == "conv_general_dilated")
    assert held[16, 32, 32, 3][0] < forward
    assert held[16, 32, 32, 3][1] == backward
    rounded = [v.id for v in graph.values if v.shape == (7, 7, 3, 64) and v.dtype == "bfloat16"]
    assert rounded[0] not in buffers(graph)
