"""Steps of one's own in the three forms that `--step` takes, for the tests of the command line."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp

WEIGHT = jax.ShapeDtypeStruct((8, 4), jnp.float32)
BATCH = jax.ShapeDtypeStruct((2, 8), jnp.float32)


def train_step(weight_DF, batch_BD):
    """One step of gradient descent on the mean square of a linear layer."""
    loss, grad_DF = jax.value_and_grad(lambda w_DF: jnp.mean((batch_BD @ w_DF) ** 2))(weight_DF)
    return weight_DF - 0.1 * grad_DF, {"loss": loss}


def pair():
    return train_step, (WEIGHT, BATCH)


def parts():
    return SimpleNamespace(step=train_step, args=(WEIGHT, BATCH))


def example():
    return SimpleNamespace(
        step=train_step,
        init=lambda key: jax.random.normal(key, (8, 4)),
        batch=BATCH,
        make_batch=lambda rng: rng.normal(size=(2, 8)).astype("float32"),
    )
