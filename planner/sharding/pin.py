"""Pin: what a user fixes of one value's spec, all of it or a part.

P(data, -)       the spec, exactly
P(data, ?)       dim 0 over data alone; dim 1 is open
data@0           data splits dim 0, perhaps beside other axes; the rest is open
!model           model splits no dim
data@0, !model   both
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from planner.graph.coarsen import Node
from planner.graph.rule import Dims
from planner.sharding import spec as specs
from planner.sharding.spec import Spec, axes_of, divides
from planner.sharding.strategy import Strategy, of_state, result_spec, strategies

OPEN = ("?",)  # a dim that a pin says nothing about
_ON = re.compile(r"([A-Za-z_]\w*)@(\d+)")
_OFF = re.compile(r"!([A-Za-z_]\w*)")
_SPEC = re.compile(r"P\([^()]*(?:\([^()]*\)[^()]*)*\)")


@dataclasses.dataclass(frozen=True)
class Pin:
    """dims: the axes of each dim, OPEN where any may be; None if all dims are open. on: (axis, dim) of axes
    that split a dim. off: axes that split none."""

    dims: Spec | None = None
    on: tuple[tuple[str, int], ...] = ()
    off: tuple[str, ...] = ()

    @property
    def exact(self) -> Spec | None:
        """The only spec under which it holds, if it says all of it."""
        return None if self.dims is None or OPEN in self.dims else self.dims

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes it names."""
        given = [dim for dim in self.dims or () if dim != OPEN]
        return (*axes_of(tuple(given)), *(axis for axis, _ in self.on), *self.off)

    def required(self, rank: int) -> Spec:
        """The axes that have to split each dim of a value of so many dims."""
        dims = [() if dim == OPEN else dim for dim in self.dims or ((),) * rank]
        for axis, dim in self.on:
            dims[dim] = dims[dim] if axis in dims[dim] else (*dims[dim], axis)
        return tuple(dims)


def holds(pin: Pin, spec: Spec) -> bool:
    """Whether a spec is as the pin says.

    >>> holds(Pin(off=("model",)), (("data",), ())), holds(Pin(on=(("data", 1),)), (("data",), ()))
    (True, False)
    """
    dims = pin.dims or (OPEN,) * len(spec)
    return (
        all(wanted in (OPEN, dim) for wanted, dim in zip(dims, spec, strict=True))
        and all(axis in spec[dim] for axis, dim in pin.on)
        and not set(pin.off).intersection(axes_of(spec))
    )


def show(pin: Pin) -> str:
    """One line, which `parse` reads back.

    >>> show(Pin(on=(("data", 0),), off=("model",)))
    'data@0, !model'
    """
    spec = [] if pin.dims is None else [specs.show(pin.dims)]
    return ", ".join([*spec, *(f"{axis}@{dim}" for axis, dim in pin.on), *(f"!{axis}" for axis in pin.off)])


def parse(text: str) -> Pin:
    """The inverse of `show`. Raises ValueError on anything else.

    >>> parse("P(data, ?), !model")
    Pin(dims=(('data',), ('?',)), on=(), off=('model',))
    """
    found = _SPEC.match(text)
    rest = text[found.end() :].lstrip().removeprefix(",") if found else text
    dims = specs.parse(found.group()) if found else None
    on, off = [], []
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        if placed := _ON.fullmatch(part):
            on.append((placed[1], int(placed[2])))
        elif kept := _OFF.fullmatch(part):
            off.append(kept[1])
        else:
            raise ValueError(f"{text!r} is no pin; write it as P(data, ?), data@0 or !model.")
    if dims is None and not on and not off:
        raise ValueError(f"{text!r} is no pin; write it as P(data, ?), data@0 or !model.")
    return Pin(dims, tuple(on), tuple(off))


@dataclasses.dataclass(frozen=True)
class Held:
    """A pin on a value that a node makes. dims: the value's dims in the factors of the node. value: which,
    and pattern: as the user called it; neither decides what the node may do."""

    dims: Dims
    pin: Pin
    value: int = dataclasses.field(compare=False)
    pattern: str = dataclasses.field(compare=False)


def held_strategies(node: Node, held: Sequence[Held], sizes: Mapping[str, int]) -> tuple[Strategy, ...]:
    """The strategies of a node under which all its pins hold; none if they cannot. What an argument is pinned
    to exactly may have its axes in any order."""
    exact = held[-1].pin.exact
    if node.kind == "leaf" and exact is not None:
        shape = tuple(extent for _, extent in node.sizes)
        named = all(axis in sizes for axis in axes_of(exact))
        if not named or not divides(exact, shape, sizes) or not all(holds(one.pin, exact) for one in held):
            return ()
        names = (dim[0] for dim in node.outputs[0].dims)
        return (Strategy({name: axes for name, axes in zip(names, exact, strict=True) if axes}, {}),)
    return tuple(
        strategy
        for strategy in strategies(node, sizes, of_state(node))
        if all(holds(one.pin, result_spec(one.dims, strategy)) for one in held)
    )
