"""Small train steps with hand-written optimizers, for the tests of the planner's core. They import nothing
of ours.

Shapes: B batch, I inputs, H hidden, O outputs.
"""

from typing import Any

import jax
import jax.numpy as jnp

Tree = dict[str, Any]


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def predict(params: Tree, x_BI: jax.Array) -> jax.Array:
    return jax.nn.relu(x_BI @ params["w1"]) @ params["w2"]


def loss_of(params: Tree, batch: Tree) -> jax.Array:
    return jnp.mean((predict(params, batch["x"]) - batch["y"]) ** 2)


def sgd_step(params: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def adam_step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
    """Adam without bias correction: three arrays, 12 bytes, a parameter."""
    loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["square"], grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square}, loss


def weights(inputs: int = 16, hidden: int = 32, outputs: int = 8) -> Tree:
    return {"w1": f32(inputs, hidden), "w2": f32(hidden, outputs)}


def batch_of(batch: int = 32, inputs: int = 16, outputs: int = 8) -> Tree:
    return {"x": f32(batch, inputs), "y": f32(batch, outputs)}


def sgd_args(batch: int = 32, inputs: int = 16, hidden: int = 32, outputs: int = 8) -> tuple[Tree, Tree]:
    return weights(inputs, hidden, outputs), batch_of(batch, inputs, outputs)


def adam_args(batch: int = 32, inputs: int = 16, hidden: int = 32, outputs: int = 8) -> tuple[Tree, Tree]:
    tree = weights(inputs, hidden, outputs)
    return {"params": tree, "mean": tree, "square": tree}, batch_of(batch, inputs, outputs)


def bad_batch() -> tuple[Any, tuple[Tree, Tree]]:
    """For the command line: a batch of 30."""
    return sgd_step, sgd_args(batch=30)


def too_big() -> tuple[Any, tuple[Tree, Tree]]:
    """For the command line: 12 bytes for each of 2 * 2^36 parameters."""
    return adam_step, adam_args(inputs=2**18, hidden=2**18, outputs=2**18)


def untraceable() -> tuple[Any, tuple[Tree, Tree]]:
    """For the command line: a step that branches on a traced value."""
    return branches_on_a_value, sgd_args()


def branches_on_a_value(params: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
    loss = loss_of(params, batch)
    return (params, loss) if loss > 0 else (params, -loss)
