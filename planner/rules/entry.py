"""What a row of the rule table holds, and the few helpers all rooms share.

A row function takes `(params, operands, results)`: the equation's parameters, read by attribute or key and
never imported, and the avals (anything with a shape and a dtype) of its operands and results.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from planner.graph.rule import Halo, Rule


class Aval(Protocol):
    """Shape and dtype of a value, as jax's ShapedArray and ShapeDtypeStruct have them."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Shaped:
    """An aval of which only the shape matters."""

    shape: tuple[int, ...]
    dtype: Any = None


Params = Mapping[str, Any]
Avals = Sequence[Aval]
Name = str | tuple[str, ...]  # of a dim, as rooms write it: one factor or several, major first


def no_flops(_params: Params, _operands: Avals, _results: Avals) -> float:
    """Moving data is no arithmetic."""
    return 0.0


@dataclasses.dataclass(frozen=True)
class Entry:
    """rule: the factors. flops: of one run, unsharded. light: XLA fuses it with its neighbours."""

    rule: Callable[[Params, Avals, Avals], Rule]
    flops: Callable[[Params, Avals, Avals], float] = no_flops
    light: bool = False


def elements(aval: Aval) -> int:
    """Number of elements of an array."""
    return math.prod(aval.shape)


def per_result(cost: float) -> Callable[[Params, Avals, Avals], float]:
    """`cost` FLOPs for each element of the first result."""
    return lambda _params, _operands, results: cost * elements(results[0])


def per_operand(cost: float) -> Callable[[Params, Avals, Avals], float]:
    """`cost` FLOPs for each element of the first operand."""
    return lambda _params, operands, _results: cost * elements(operands[0])


@functools.cache
def letters(rank: int, first: int = 0) -> tuple[str, ...]:
    """Factor names a b c ... z a1 b1 ..., `rank` of them from number `first` on."""
    return tuple(chr(97 + i % 26) + (str(i // 26) if i >= 26 else "") for i in range(first, first + rank))


def numbered(letter: str, count: int) -> tuple[str, ...]:
    """`i` if there is one of its kind, else `i1 i2 ...`."""
    return (letter,) if count == 1 else tuple(f"{letter}{i + 1}" for i in range(count))


def build(
    operand_names: Iterable[Sequence[Name]],
    result_names: Iterable[Sequence[Name]],
    operands: Avals,
    results: Avals,
    whole: Iterable[str] = (),
    sizes: Mapping[str, int] | None = None,
    halos: Mapping[tuple[int, int], tuple[int, int]] | None = None,
    apart: Iterable[tuple[str, str]] = (),
    filling: Iterable[str] = (),
) -> Rule:
    """A rule from the factors of each dim.

    Extents come from the dims where a factor stands alone, and from `sizes` for the others. A dim of extent
    one is walked by no factor, whatever its name, so a stretched dim needs no care; a factor over nothing
    (extent zero) stays whole. halos: rows before and after, by operand and dim; of a dim that cannot be split
    there are none. apart, filling: as in Rule. Raises ValueError if two dims of one factor differ.
    """
    named = [
        tuple((n,) if isinstance(n, str) else n for n in names) for names in (*operand_names, *result_names)
    ]
    avals = (*operands, *results)
    extents = dict(sizes or {})
    for dims, aval in zip(named, avals, strict=True):
        for dim, extent in zip(dims, aval.shape, strict=True):
            if len(dim) == 1 and extent != 1 and extents.setdefault(dim[0], extent) != extent:
                raise ValueError(f"factor {dim[0]} walks dims of {extents[dim[0]]} and of {extent}")
    values = tuple(
        tuple(
            tuple(f for f in dim if extents.get(f, 1) != 1) if extent != 1 else ()
            for dim, extent in zip(dims, aval.shape, strict=True)
        )
        for dims, aval in zip(named, avals, strict=True)
    )
    kept = dict.fromkeys(f for dims in values for dim in dims for f in dim)
    stay = set(whole) & set(kept) | {f for f in kept if extents[f] == 0}
    count = len(operands)
    read = tuple(
        Halo(place, dim, *rows)
        for (place, dim), rows in sorted((halos or {}).items())
        if any(rows) and stay.isdisjoint(values[place][dim][:1]) and values[place][dim]
    )
    pairs = tuple(pair for pair in apart if set(pair) <= kept.keys())
    alone = frozenset(filling) & kept.keys()
    sizes_kept = {f: extents[f] for f in kept}
    return Rule(values[:count], values[count:], sizes_kept, frozenset(stay), read, apart=pairs, filling=alone)
