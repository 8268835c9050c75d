"""Meshwright: plan how a JAX train step is sharded, and run it that way.

The public names are loaded on first use, so that the parts that need no jax stay importable without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import compare, plan, plan_and_shard, verify
    from planner.apply import ShardedStep
    from planner.opaque import with_rule
    from planner.placed import pins_of
    from planner.plans import Plan, load
    from planner.verdict import Verification

__all__ = [
    "Plan",
    "ShardedStep",
    "Verification",
    "compare",
    "load",
    "pins_of",
    "plan",
    "plan_and_shard",
    "verify",
    "with_rule",
]

_HOME = {
    "Plan": "planner.plans",
    "ShardedStep": "planner.apply",
    "Verification": "planner.verdict",
    "compare": "planner.api",
    "load": "planner.plans",
    "pins_of": "planner.placed",
    "plan": "planner.api",
    "plan_and_shard": "planner.api",
    "verify": "planner.api",
    "with_rule": "planner.opaque",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'planner' has no attribute {name!r}; its names are {', '.join(__all__)}."
        )
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
