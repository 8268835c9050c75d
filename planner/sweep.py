"""Plans of one step under less and less memory."""

from collections.abc import Callable, Iterator
from typing import Any

from planner.api import plan
from planner.errors import InfeasibleError
from planner.plans import Plan

_LESS = 0.93  # of what the plan before needs


def sweep(
    train_step: Callable[..., Any], *args: Any, steps: int = 12, **keywords: Any
) -> Iterator[tuple[float, Plan]]:
    """(memory_fraction, plan): at first with all the memory, then each time with a little less than the plan
    before needs; it ends where nothing fits, or after `steps` plans. Takes the keywords of `plan`."""
    fraction = 1.0
    for _ in range(steps):
        try:
            found = plan(train_step, *args, memory_fraction=fraction, **keywords)
        except InfeasibleError:
            return
        yield fraction, found
        fraction *= _LESS * found.peak_bytes / found.limit_bytes
