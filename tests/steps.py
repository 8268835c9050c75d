"""The train steps that are planned, sharded and run on eight devices: small, in float32, with plain SGD.

SGD is linear in the gradient, so that rounding stays rounding; AdamW divides the rounding of a gradient that is zero
by itself. The learning rates are high, so that three steps move the parameters by much more than the tolerance.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import models
import numpy as np
import plain_transformer

_LANGUAGE = {"batch": 8, "seq": 16, "layers": 2, "learning_rate": 0.5}
_MODELS = {
    "gpt": ("gpt", _LANGUAGE),
    "gpt_scan": ("gpt", {**_LANGUAGE, "scan": True, "remat": True}),
    "llama": ("llama", _LANGUAGE),
    "mlp": ("mlp", {"learning_rate": 0.1}),
    "resnet": ("resnet", {"batch": 8, "image": 16, "learning_rate": 0.1}),
}
NAMES = (*_MODELS, "plain")

# Where each scheme is at home on eight devices: its own number of axes.
MESHES = {
    "data": {"x": 8},
    "zero1": {"x": 8},
    "fsdp": {"x": 8},
    "tensor_1d": {"x": 8},
    "tensor_1d_sp": {"x": 8},
    "fsdp_tensor": {"x": 4, "y": 2},
    "tensor_2d": {"x": 4, "y": 2},
    "tensor_3d": {"x": 2, "y": 2, "z": 2},
}


@dataclasses.dataclass(frozen=True)
class Unsharded:
    """A step and what it does to a state on one device. before, after: the state as numpy, before the first step and
    after one on each of the batches; metrics: of the last."""

    init: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    batches: tuple[Any, ...]
    before: Any
    after: Any
    metrics: Any


def unsharded(name: str, count: int = 3) -> Unsharded:
    """One of NAMES, run for `count` steps."""
    if name == "plain":
        init, step, make_batch = plain_transformer.init, plain_transformer.sgd_step, plain_transformer.make_batch
    else:
        model, settings = _MODELS[name]
        example = models.load(model, "tiny", optimizer="sgd", **settings)
        init, step, make_batch = example.init, example.step, example.make_batch
    rng = np.random.default_rng(0)
    batches = tuple(make_batch(rng) for _ in range(count))
    state = jax.jit(init)(jax.random.key(0))
    before, metrics = jax.tree.map(np.asarray, state), None
    jitted = jax.jit(step)
    for batch in batches:
        state, metrics = jitted(state, batch)
    return Unsharded(init, step, batches, before, *jax.tree.map(np.asarray, (state, metrics)))


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the functions that XLA compiles meanwhile, as jax logs them."""
    names: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("Finished XLA compilation of "):
                names.append(text.split(" in ")[0].removeprefix("Finished XLA compilation of "))

    listener, log = Listener(), logging.getLogger("jax")
    log.addHandler(listener)
    try:
        with jax.log_compiles():
            yield names
    finally:
        log.removeHandler(listener)
