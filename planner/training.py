"""JAX edge: runs a sharded step on data, and measures it."""

import statistics
import time
from collections.abc import Callable
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


def run(
    step: Any,
    *,
    init: Callable[[Any], Any],
    make_batch: Callable[[np.random.Generator], Any],
    steps: int,
    seed: int,
    tick: Callable[[int, float], None],
) -> tuple[float, tuple[float, ...]]:
    """Runs `steps` steps of a ShardedStep from a fresh state; tick gets each step's number and loss.

    Returns the median seconds of a step, the first one left out because it compiles, and all losses.
    """
    rng = np.random.default_rng(seed)
    state = step.init(init, jax.random.key(seed))
    seconds, losses = [], []
    for number in range(1, steps + 1):
        state, batch = step.put(state, make_batch(rng))
        jax.block_until_ready((state, batch))
        start = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - start)
        losses.append(_loss(metrics))
        tick(number, losses[-1])
    return statistics.median(seconds[1:] or seconds), tuple(losses)


def _loss(metrics: Any) -> float:
    if not isinstance(metrics, dict) or "loss" not in metrics:
        raise InputError("The step's second result has no 'loss'. Let it return (state, {'loss': loss}).")
    return float(metrics["loss"])
