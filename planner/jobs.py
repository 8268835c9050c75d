"""Job: the train step that a command is about, with its arguments; from models/ or from anybody's module."""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from planner.errors import InputError

_WANTED = "(train_step, args), or an object with `step` and `args`, or one with `step`, `init` and `batch`"


@dataclasses.dataclass(frozen=True)
class Job:
    """A train step and the shapes it is planned for.

    args: arrays or ShapeDtypeStructs. init: PRNG key -> state, and make_batch: generator -> batch, are
    there when the step can be run and not only planned.
    """

    name: str
    step: Callable[..., Any]
    args: tuple[Any, ...]
    init: Callable[[Any], Any] | None = None
    make_batch: Callable[[Any], Any] | None = None


def model_job(name: str, config: str, settings: Mapping[str, Any]) -> Job:
    """A step of models/. Raises InputError for a model, config or setting that is not there."""
    import models  # brings in jax, flax and optax, which no other command needs

    try:
        example = models.load(name, config or None, **settings)
    except ValueError as error:
        raise InputError(str(error)) from error
    return _from_parts(example.name, example)


def step_job(target: str) -> Job:
    """The step that `package.module:function` returns; see the README for what it may return.

    Raises InputError when there is no such function, when it fails, or when it returns something else.
    """
    module_name, _, function_name = target.partition(":")
    if not module_name or not function_name:
        raise InputError(f"--step={target} names no function. Write it as package.module:function.")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the console script does not look in the current folder, `python -m` does
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"--step={target} cannot be loaded: {error}. Check the name and the folder."
        ) from error
    try:
        made: Any = function()
    except Exception as error:
        raise InputError(
            f"--step={target} failed with {type(error).__name__}: {error}. Call {function_name}() in Python "
            "to see where."
        ) from error
    pair = made if isinstance(made, tuple) and len(made) == 2 else None
    step, args = pair or (getattr(made, "step", None), getattr(made, "args", None))
    if callable(step) and isinstance(args, tuple | list):
        return Job(target, step, tuple(args))
    if callable(step) and hasattr(made, "init") and hasattr(made, "batch"):
        return _from_parts(target, made)
    raise InputError(f"--step={target} returned {type(made).__name__}. Let it return {_WANTED}.")


def _from_parts(name: str, example: Any) -> Job:
    from planner.training import abstract_state

    args = (abstract_state(example.init), example.batch)
    return Job(name, example.step, args, example.init, getattr(example, "make_batch", None))
