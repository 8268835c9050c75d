"""Which wires each logical axis rides on, by the rules of `jax.experimental.mesh_utils.create_device_mesh`.

Those rules, for a torus of shape p and logical sizes l, the last logical axis being the busiest:

1. From the last logical axis to the first, give each a set of free whole physical axes whose product is
   its size, the larger sets first, then in lexical order; where a chip has two dies (a fourth physical axis,
   TPU 7x), sets with the die axis go before others. JAX before 0.12 has no such preference.
2. If that fails for one axis, start over and let axes be split: from the last to the first, of all ways to
   write the size as a product of divisors of what is left, take the one that covers most whole axes, then
   most of them in number, then most of axes begun before, then the lexically greatest. On a split physical
   axis the later logical axis is the inner one.

Slices are divided first, over the outer logical axes. Devices that JAX only reshapes (GPUs, CPUs) are walked
in row-major order.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from meshes.chip import Shape
from meshes.topology import Topology, Wire

Wires = tuple[tuple[Wire, ...], ...]
Matrix = list[list[int]]  # [logical axis][physical axis] -> devices


def wires_of(topology: Topology, sizes: Sequence[int]) -> Wires:
    """Per logical axis its wires, outermost first. The sizes multiply to the devices of the topology."""
    if any(wire.kind == "ici" for wire in topology.wires):
        return _on_torus(topology, sizes)
    return _row_major(topology, sizes)


def split_slices(slices: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """How many slices each logical axis spans, outer axes first; `slices` divides the product of the sizes.

    >>> split_slices(2, (4, 8))
    (2, 1)
    """
    spans = []
    for size in sizes:
        spans.append(math.gcd(slices, size))
        slices //= spans[-1]
    return tuple(spans)


def _on_torus(topology: Topology, sizes: Sequence[int]) -> Wires:
    dcn, *torus = topology.wires
    spans = split_slices(dcn.size, sizes)
    inner = tuple(size // span for size, span in zip(sizes, spans, strict=True))
    matrix = assign([wire.size for wire in torus], inner)
    found = []
    for axis, (span, row) in enumerate(zip(spans, matrix, strict=True)):
        wires = [dcn.part(span, math.prod(spans[axis + 1 :]))] if span > 1 else []
        for index, (wire, size) in enumerate(zip(torus, row, strict=True)):
            if size > 1:
                wires.append(wire.part(size, math.prod(later[index] for later in matrix[axis + 1 :])))
        found.append(tuple(wires))
    return tuple(found)


def _row_major(topology: Topology, sizes: Sequence[int]) -> Wires:
    """GPUs and host devices: a logical axis takes devices `stride` apart."""
    found = []
    for axis, size in enumerate(sizes):
        stride = math.prod(sizes[axis + 1 :])
        found.append(_strided(topology.wires, size, stride))
    return tuple(found)


def _strided(wires: tuple[Wire, ...], size: int, stride: int) -> tuple[Wire, ...]:
    """The wires between `size` devices that are `stride` apart."""
    inner = wires[-1]
    if len(wires) == 1:
        return (inner.part(size, stride),) if size > 1 else ()
    outer = wires[0]
    if stride >= inner.size or inner.size % stride:
        near = 1
    else:
        near = math.gcd(inner.size // stride, size)
        # A row that leaves a node half-way crosses the network elsewhere in every node: count it all there.
        if near < size and near * stride != inner.size:
            near = 1
    far = size // near
    found = [outer.part(far, max(stride // inner.size, 1))] if far > 1 else []
    return (*found, inner.part(near, stride)) if near > 1 else tuple(found)


def assign(physical: Sequence[int], sizes: Sequence[int]) -> Matrix:
    """Devices of each physical axis given to each logical axis. The sizes multiply to the same number."""
    return _whole(physical, sizes) or _split(physical, sizes)


def _whole(physical: Sequence[int], sizes: Sequence[int]) -> Matrix | None:
    """Step 1 of the module's rules, or None where a physical axis must be split."""
    free = list(physical)
    matrix = [[1] * len(physical) for _ in sizes]
    for axis in reversed(range(len(sizes))):
        for chosen in _subsets(free):
            if math.prod(free[index] for index in chosen) == sizes[axis]:
                for index in chosen:
                    matrix[axis][index], free[index] = free[index], 0
                break
        else:
            if sizes[axis] > 1:
                return None
    return matrix


def _subsets(free: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(free), 0, -1):
        chosen = itertools.combinations(range(len(free)), count)
        yield from sorted(chosen, key=_die_first) if len(free) > 3 else chosen


def _die_first(chosen: tuple[int, ...]) -> tuple[int, int]:
    """JAX's priority of a set of physical axes: by its best one, then the sum; axis 3, the dies, is best."""
    ranks = [(index + 1) % 4 for index in chosen]
    return min(ranks), sum(ranks)


def _split(physical: Sequence[int], sizes: Sequence[int]) -> Matrix:
    """Step 2 of the module's rules."""
    matrix = [[1] * len(physical) for _ in sizes]
    begun = [1] * len(physical)
    for axis in reversed(range(len(sizes))):
        left = [size // used for size, used in zip(physical, begun, strict=True)]
        matrix[axis] = list(
            max(_products(left, sizes[axis]), key=lambda parts: _merit(parts, physical, begun))
        )
        begun = [used * part for used, part in zip(begun, matrix[axis], strict=True)]
    return matrix


def _merit(parts: Shape, physical: Sequence[int], begun: Sequence[int]) -> tuple[int, int, int, Shape]:
    whole = [part for part, size in zip(parts, physical, strict=True) if part == size]
    again = math.prod(part for part, used in zip(parts, begun, strict=True) if used > 1)
    return math.prod(whole), sum(part > 1 for part in whole), again, parts


def _products(left: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `size` as a product of one divisor of each entry of `left`."""
    if not left:
        if size == 1:
            yield ()
        return
    for part in range(1, math.gcd(left[0], size) + 1):
        if left[0] % part == 0 and size % part == 0:
            for rest in _products(left[1:], size // part):
                yield (part, *rest)
