"""Example: one model with its train step, and the settings that all of them share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

State = dict[str, Any]
Batch = dict[str, Any]
Metrics = dict[str, jax.Array]

DTYPES = ("bfloat16", "float32")
OPTIMIZERS = ("adamw", "sgd")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of every model.

    batch: samples in a step. dtype: of the computation; parameters and moments are float32 always.
    optimizer: 'adamw' (with clipping by the global norm, warm-up and cosine decay) or 'sgd' (nothing but
    the learning rate). learning_rate: the peak. warmup, decay: steps until the peak, and until the end.
    """

    batch: int = 16
    dtype: str = "float32"
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    warmup: int = 10
    decay: int = 1000

    def __post_init__(self) -> None:
        one_of("dtype", self.dtype, DTYPES)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is int and value < 1:
                raise ValueError(
                    f"Setting {field.name!r} is {value}, but it counts something; give 1 or more."
                )


def one_of(field: str, value: str, known: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of `known`."""
    if value not in known:
        raise ValueError(f"Setting {field!r} is {value!r}; choose one of {', '.join(known)}.")


def must_divide(small: str, few: int, big: str, many: int) -> None:
    """Raises ValueError unless `few` divides `many`; `small` and `big` are the settings' names."""
    if many % few:
        raise ValueError(
            f"Setting {small!r} is {few}, which does not divide {big!r} = {many}; choose a divisor of {many}."
        )


@dataclasses.dataclass(frozen=True)
class Example:
    """A train step and what it takes.

    init: PRNG key -> state, a pytree of arrays that can be made abstractly (`jax.eval_shape`) at any size.
    step: (state, batch) -> (state, metrics); pure; the state keeps its tree, shapes and dtypes; metrics are
    scalars. batch: the shapes of a batch. make_batch: draws one.
    """

    name: str
    config: TrainConfig
    init: Callable[[jax.Array], State]
    step: Callable[[State, Batch], tuple[State, Metrics]]
    batch: Batch
    make_batch: Callable[[np.random.Generator], Batch]
