"""Example train steps in flax and optax, plain enough to be anybody's.

`load("gpt", "tiny", layers=4, scan=True)` gives an `Example`: a pure train step, how to make its state, and
the shapes of its batch. The modules themselves are imported when a model is asked for.
"""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from models.example import Example

__all__ = ["Example", "configs", "load", "names"]

_NAMES = (
    "alexnet", "densenet", "gpt", "graphnet", "inception_v3", "llama", "mlp", "moe", "nmt_lstm",
    "resnet", "rnnlm", "rnntc", "transformer_nmt", "unet", "vit",
)  # fmt: skip


def names() -> tuple[str, ...]:
    """The models there are, sorted."""
    return _NAMES


def configs(name: str) -> tuple[str, ...]:
    """The named configs of a model, the smallest first. Raises ValueError for an unknown model."""
    return tuple(_module(name).CONFIGS)


def load(name: str, config: str | None = None, **overrides: Any) -> Example:
    """The train step of a model under a named config (the smallest if none is given), fields replaced by
    `overrides`: `layers=48, scan=True, batch=64`.

    Raises ValueError for an unknown model, config or field, and for a value the model cannot have.
    """
    module = _module(name)
    known = module.CONFIGS
    chosen = next(iter(known)) if config is None else config
    if chosen not in known:
        raise ValueError(f"Model {name!r} has no config {chosen!r}; choose one of {_listed(known)}.")
    base = known[chosen]
    defaults = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    for field, value in overrides.items():
        if field not in defaults:
            raise ValueError(
                f"Model {name!r} has no setting {field!r}; choose among {_listed(sorted(defaults))}."
            )
        _check_type(name, field, value, defaults[field])
    return module.build(dataclasses.replace(base, **overrides))


def _module(name: str) -> Any:
    if name not in _NAMES:
        raise ValueError(f"There is no model {name!r}; choose one of {_listed(_NAMES)}.")
    return importlib.import_module(f"models.{name}")


def _check_type(name: str, field: str, value: Any, default: Any) -> None:
    wanted = type(default)
    fits = type(value) is wanted or (wanted is float and type(value) is int)
    if not fits:
        raise ValueError(
            f"Setting {field!r} of model {name!r} is {value!r}, but it must be of type {wanted.__name__}; "
            f"give a value like {default!r}."
        )


def _listed(words: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(words)
