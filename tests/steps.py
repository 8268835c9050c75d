"""The train steps that are planned, sharded and run on eight devices, small; and what they do unsharded.

With SGD, which is linear in the gradient, rounding stays rounding, so float32 will do. AdamW divides a
gradient by its own size, noise by noise where the true one is nearly zero; it is compared in float64. The
learning rates are high, so that three steps move the parameters by much more than the tolerance.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import plain_transformer

import models

_LANGUAGE = {"batch": 8, "seq": 16, "layers": 2, "learning_rate": 0.5}
_MODELS = {
    "gpt": ("gpt", _LANGUAGE),
    "gpt_scan": ("gpt", {**_LANGUAGE, "scan": True, "remat": True}),
    "llama": ("llama", _LANGUAGE),
    "mlp": ("mlp", {"learning_rate": 0.1}),
    "resnet": ("resnet", {"batch": 8, "image": 16, "learning_rate": 0.1}),
}
_PLAIN = {"plain_sgd": plain_transformer.sgd_step, "plain_adamw": plain_transformer.adamw_step}
NAMES = (*_MODELS, *_PLAIN)

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
class Step:
    """A train step with its data. double: whether to run it in float64, under `jax.enable_x64`."""

    init: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    make_batch: Callable[[np.random.Generator], Any]
    double: bool = False


def step_of(name: str) -> Step:
    """One of NAMES."""
    if name in _PLAIN:
        plain = plain_transformer
        return Step(plain.init, _PLAIN[name], plain.make_batch, double=name == "plain_adamw")
    model, settings = _MODELS[name]
    example = models.load(model, "tiny", optimizer="sgd", **settings)
    return Step(example.init, example.step, example.make_batch)


@dataclasses.dataclass(frozen=True)
class Unsharded:
    """What a step does on one device. before, after: the state as numpy, before the first step, and after one
    on each of the batches; metrics: of the last."""

    batches: tuple[Any, ...]
    before: Any
    after: Any
    metrics: Any


def run_unsharded(step: Step, count: int = 3) -> Unsharded:
    """`count` steps from a fresh state."""
    rng = np.random.default_rng(0)
    batches = tuple(step.make_batch(rng) for _ in range(count))
    state = jax.jit(step.init)(jax.random.key(0))
    before, metrics = jax.tree.map(np.asarray, state), None
    jitted = jax.jit(step.step)
    for batch in batches:
        state, metrics = jitted(state, batch)
    return Unsharded(batches, before, *jax.tree.map(np.asarray, (state, metrics)))


def differences(unsharded: Unsharded, after: Any, rtol: float) -> list[str]:
    """What is wrong with the state after the same steps, sharded; nothing, if it is equal within `rtol`."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(unsharded.after)]
    wanted, starts, got = (
        [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
        for tree in (unsharded.after, unsharded.before, after)
    )
    changes = [np.abs(end - start).max() for end, start in zip(wanted, starts, strict=True)]
    # A leaf whose true gradient is zero, such as the bias of the keys (softmax does not see what is added to
    # all scores of a query), holds nothing but rounding. It can only be held against leaves that do move.
    noise = 0.1 * rtol * np.median(changes)
    wrong = []
    for path, end, mine, change in zip(paths, wanted, got, changes, strict=True):
        error, largest = np.abs(mine - end).max(), np.abs(end).max()
        # Against the change as well: a small change of a large leaf could be quite wrong and hardly be seen.
        bound = rtol * min(largest, 100 * change + 0.05 * largest) + noise
        if not error <= bound:
            wrong.append(f"{path} is off by {error:.1e}, which is more than {bound:.1e}")
    return wrong


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the functions that XLA compiles meanwhile, as jax logs them."""
    names: list[str] = []
    start = "Finished XLA compilation of "

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith(start):
                names.append(text.removeprefix(start).split(" in ")[0])

    listener, log = Listener(), logging.getLogger("jax")
    log.addHandler(listener)
    try:
        with jax.log_compiles():
            yield names
    finally:
        log.removeHandler(listener)
