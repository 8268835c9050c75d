"""JAX edge: runs a sharded step on data, and measures it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from planner.errors import InputError


def abstract_state(init: Callable[[Any], Any]) -> Any:
    """The shapes and types of the state that `init` makes from a key, without making it."""
    # The key is made inside, because making one here would start the devices before anybody chose them.
    return jax.eval_shape(lambda: init(jax.random.key(0)))


def use_cpu_devices(count: int) -> None:
    """Lets the CPU stand in for `count` devices. Raises InputError when jax already runs on other devices."""
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        if jax.default_backend() != "cpu" or jax.device_count() < count:
            raise InputError(
                f"jax already runs on {jax.device_count()} {jax.default_backend()} devices, so cpu:{count}"
                " cannot be used. Start a new process."
            ) from error


def train(
    step: Any,
    *,
    init: Callable[[Any], Any],
    make_batch: Callable[[np.random.Generator], Any],
    seed: int,
) -> Iterator[tuple[float, float]]:
    """Trains by a ShardedStep from a fresh state, without end; yields the seconds and the loss of each step.

    The first step is slow, because it compiles. The same seed gives the same parameters and data.
    """
    rng = np.random.default_rng(seed)
    state = step.init(init, jax.random.key(seed))
    while True:
        state, batch = step.put(state, make_batch(rng))
        jax.block_until_ready((state, batch))
        start = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        yield time.perf_counter() - start, _loss(metrics)


def _loss(metrics: Any) -> float:
    if not isinstance(metrics, dict) or "loss" not in metrics:
        raise InputError("The step's second result has no 'loss'. Let it return (state, {'loss': loss}).")
    return float(metrics["loss"])
