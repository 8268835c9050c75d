"""How each primitive may be split: a table keyed by the primitive's name. Knows no jax.

Containers (jit, scan, while, cond, remat2, custom_jvp_call, ...) have no rule: their bodies are inlined.
Opaque primitives (pallas_call, shard_map, ffi_call, callbacks, custom_partitioning) have none either;
`rule_of` says None, and the caller keeps them whole.
"""

from planner.graph.rule import Rule
from planner.rules import (
    attention,
    contraction,
    control,
    elementwise,
    indexing,
    linalg,
    random,
    reduction,
    reshaping,
)
from planner.rules.entry import Aval, Avals, Entry, Params, elements

ROOMS = (attention, contraction, control, elementwise, indexing, linalg, random, reduction, reshaping)
TABLE: dict[str, Entry] = {name: entry for room in ROOMS for name, entry in sorted(room.TABLE.items())}

__all__ = ["TABLE", "Aval", "flops_of", "is_light", "rule_of"]


def rule_of(primitive: str, params: Params, operands: Avals, results: Avals) -> Rule | None:
    """The factors of one equation, or None for a primitive that is not in the table."""
    entry = TABLE.get(primitive)
    return entry.rule(params, operands, results) if entry else None


def flops_of(primitive: str, params: Params, operands: Avals, results: Avals) -> float:
    """Floating-point operations of one run, unsharded, a multiply-add being two.

    Of an unknown primitive nothing is known; it counts one per element of its results.
    """
    entry = TABLE.get(primitive)
    if entry is None:
        return float(sum(elements(value) for value in results))
    return entry.flops(params, operands, results)


def is_light(primitive: str, operands: Avals = (), results: Avals = ()) -> bool:
    """Whether XLA fuses the op with its neighbours.

    A reshape is light only if it adds or drops dims of extent one, which its operands and results tell.
    """
    if primitive == "reshape" and operands and results:
        before, after = ([n for n in v.shape if n != 1] for v in (operands[0], results[0]))
        return before == after
    entry = TABLE.get(primitive)
    return entry is not None and entry.light
