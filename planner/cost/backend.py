"""What a compiler makes of a planned collective: the kind it writes, and the width of what it moves.

The plan asks for an all-gather or a reduce-scatter; the bytes on the wire follow from what the compiler of
the machine writes for it. Each rule stands here once, with what it was read from.

CPU     A reduce-scatter is an all-reduce of which every device keeps a slice. The all-reduces for a sum over
        several dims, one for each, are not joined; nor are those of a scatter, or of sums scattered onto
        several dims, and each of them moves the whole. bfloat16 moves, and is summed, as float32.
TPU     Read from programs compiled ahead of time by libtpu 0.0.42 for v5e:4x4 and v5p:2x2x2, some 500 of
        them with one op each:
        - What is only read to be rounded to bfloat16 is rounded first, and moved so, also through the slices
          of a scan, transposes and reshapes: float32 operands of matmuls and convolutions of default
          precision, and of conversions. Sums stay float32.
        - An all-gather over all devices of a slice is an all-reduce, from 64 devices on (32 still gather; v5e
          and v5p, up to 1,024). Two gathers, one constraint after the other, over parts of them stay two.
        - A vector is gathered by an all-gather if each device holds whole rows of 128 elements, else by an
          all-reduce of the vector with zeros in the other devices' places.
        - A reduce-scatter stays one if its groups are not all devices and each part is an even number of
          tiles (8 rows of 128 elements; see `_even_tiles`); else it is an all-reduce of the whole. Nor does
          one onto a dim that only dims of length 1 come before: the rows of one sequence, a kernel of 1 x 1.
          A part lies in memory so that it takes the least. In tiles are any two dims of a matmul's result,
          batch and features of a convolution's, the last two dims, in order, of what a scatter adds up.
        - A reduce-scatter of a matmul's sums over 3 to 63 devices, onto a dim that nothing else splits,
          becomes a loop of permutes around the matmul's parts if the parts take long enough to hide them.
          Each device passes on n + 1 parts of n, where a ring passes on n - 1: the first two are the zeros
          that its sums begin with. (32 devices loop, 64 do not; nor do squares of 2 x 2 of more devices, as
          on v5p:2x2x2, where four in a row do.) Loops over 4 devices are unrolled, and pass the zeros once
          for all sums of one shape in one program or loop body: 26 parts for eight, 14 for four.
        - Sums scattered onto two dims at once are an all-reduce of the whole; those of matmuls and
          convolutions stay two reduce-scatters if each has a constraint of its own. So do two over parts of
          the devices for one over all of them.
        - Axes that a matmul or convolution leaves idle would take parts of the dim that its sums are
          scattered onto, and permutes bring them to their places; not if the whole sum is constrained first.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from planner.graph.graph import Graph, Op
from planner.sharding.spec import ways
from planner.sharding.strategy import ALL_REDUCE

LANES, SUBLANES = 128, 8
_UNROLLED = 4  # devices: a loop over so many is written out
_LARGE = 64  # devices: over so many at once nothing is gathered, and no loop passes parts round
PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
_PASSING = frozenset({"reshape", "rev", "scan_slice", "scan_stack", "squeeze", "transpose"})


def sums_to_gather(chip_kind: str, group: int, devices: int) -> bool:
    """Whether an all-gather over groups of so many of the devices is written as an all-reduce."""
    return chip_kind == "tpu" and group == devices >= _LARGE


def gathers_vectors(chip_kind: str, shard: float) -> str:
    """The kind of collective that gathers a vector of which each device holds `shard` elements."""
    return "all_reduce" if chip_kind == "tpu" and shard % LANES else "all_gather"


def rounded_reads(graph: Graph, chip_kind: str) -> frozenset[tuple[int, int]]:
    """The uses, (op id, operand), of float32 values that the backend rounds to bfloat16 before they move."""
    if chip_kind != "tpu":
        return frozenset()
    readers: dict[int, list[tuple[Op, int]]] = defaultdict(list)
    for op in graph.ops:
        for k, value in enumerate(op.operands):
            if value is not None:
                readers[value].append((op, k))
    kept = {leaf.value for leaf in graph.results}
    found: set[tuple[int, int]] = set()
    for op in reversed(graph.ops):
        rounds = op.primitive in PRODUCTS or (
            op.primitive == "convert_element_type" and graph.values[op.results[0]].dtype == "bfloat16"
        )
        if op.primitive in _PASSING:
            (result,) = op.results
            uses = [(reader.id, k) for reader, k in readers[result]]
            rounds = bool(uses) and found.issuperset(uses) and result not in kept
        if rounds:
            found.update(
                (op.id, k)
                for k, value in enumerate(op.operands)
                if value is not None and graph.values[value].dtype == "float32"
            )
    return frozenset(found)


@dataclasses.dataclass(frozen=True)
class Partial:
    """A sum that is not finished, as it is on one device.

    shape, itemsize, bytes: of the array. whole: the dims that no axis splits. hiding: seconds of the matmul
    that makes it, behind which a loop could hide its permutes; 0 if no matmul does. idle: the axes that the
    op leaves unused. led: whether constraints in turn lead the compiler to scatter it in stages. tiles:
    the pairs of dims that may lie along the rows and lanes of tiles, the likeliest first. squares: the sets
    of axes whose groups are squares of 2 x 2 devices.
    """

    shape: tuple[int, ...]
    itemsize: int
    bytes: float
    whole: frozenset[int]
    hiding: float
    idle: tuple[str, ...]
    led: bool
    tiles: Sequence[tuple[int, int]]
    squares: frozenset[frozenset[str]] = frozenset()


Written = tuple[str, tuple[str, ...], float, float]  # kind, axes, bytes, times what a ring sends


def widening(chip_kind: str, dtype: str) -> float:
    """How many times as wide as its elements are what moves of an array."""
    return 2.0 if chip_kind == "cpu" and dtype == "bfloat16" else 1.0


def cpu_sums(
    count: float,
    places: Mapping[int, tuple[str, ...]],
    factors: Sequence[tuple[str, ...]],
    sizes: Mapping[str, int],
    scatter: bool,
) -> Iterator[Written]:
    """The collectives that a CPU finishes a partial sum of `count` bytes on each device with. places: as for
    `tpu_sums`. factors: the axes of each reduced factor. scatter: whether the op that sums is one."""
    several = sum(place != ALL_REDUCE for place in places) > 1
    if scatter or several:
        for axes in factors if scatter else places.values():
            yield "all_reduce", axes, count, 1.0
        return
    for place, axes in sorted(places.items(), reverse=True):
        if place == ALL_REDUCE:
            parts = (tuple(a for a in factor if a in axes) for factor in factors)
            yield from (("all_reduce", part, count, 1.0) for part in parts if part)
        else:
            yield "reduce_scatter", axes, count, 1.0
            count /= ways(axes, sizes)


def tpu_sums(
    partial: Partial, places: Mapping[int, tuple[str, ...]], sizes: Mapping[str, int], link: float
) -> Iterator[Written]:
    """The collectives that a TPU finishes a partial sum with. places: the axes to sum over, by the dim of the
    result that they are scattered onto, or ALL_REDUCE. link: bytes/s that a device sends both ways round."""
    stages, rest = scatter_stages(partial, places, sizes, link), places.get(ALL_REDUCE, ())
    if not stages or (len(stages) > 1 and not partial.led):
        yield (
            "all_reduce",
            tuple(a for a in sizes if any(a in axes for axes in places.values())),
            partial.bytes,
            1.0,
        )
        return
    kept, shape = partial.bytes, list(partial.shape)
    for dim, axes in stages:
        count = ways(axes, sizes)
        if len(stages) == 1 and _loops(partial, dim, axes, rest, sizes, link):
            yield "reduce_scatter", axes, kept, (count + 1) / (count - 1)
        elif count == ways(tuple(sizes), sizes) or not _even_tiles(partial, shape, dim, count):
            yield "all_reduce", axes, kept, 1.0
        else:
            yield "reduce_scatter", axes, kept, 1.0
        kept /= count
        shape[dim] //= count
    if rest:
        yield "all_reduce", rest, kept, 1.0


def scatter_stages(
    partial: Partial, places: Mapping[int, tuple[str, ...]], sizes: Mapping[str, int], link: float
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """(dim, axes) of the reduce-scatters of a sum, one after the other. One over all devices, which there is
    not, is made of two: over the first axis, then over the others."""
    stages = [(dim, axes) for dim, axes in sorted(places.items(), reverse=True) if dim != ALL_REDUCE]
    if len(stages) == len(places) == 1 and partial.led:
        ((dim, axes),) = stages
        axes = tuple(axis for axis in axes if sizes[axis] > 1)
        everywhere = ways(axes, sizes) == ways(tuple(sizes), sizes)
        if everywhere and len(axes) > 1 and not _loops(partial, dim, axes, (), sizes, link):
            return (dim, axes[:1]), (dim, axes[1:])
    return tuple(stages)


def _loops(
    partial: Partial,
    dim: int,
    axes: tuple[str, ...],
    rest: tuple[str, ...],
    sizes: Mapping[str, int],
    link: float,
) -> bool:
    """Whether a matmul's sum is scattered by a loop of permutes around its parts."""
    count = ways(axes, sizes)
    alone = dim in partial.whole and not rest and not partial.idle and 2 < count < _LARGE
    in_ring = frozenset(axis for axis in axes if sizes[axis] > 1) not in partial.squares
    return alone and in_ring and partial.hiding > 2 * partial.bytes / link / count


def without_zeros(ring: float, count: int) -> float:
    """What a loop over `count` devices sends, as a multiple of what a ring sends, where one before it has
    passed the zeros already. ring: what it sends alone; 1 if it is no loop."""
    return 1.0 if count == _UNROLLED else ring


def tile_orders(primitive: str, rank: int, tiled: tuple[int, int] | None) -> tuple[tuple[int, int], ...]:
    """The pairs of dims of an op's result that may lie along the rows and lanes of tiles: first as it stands,
    then those with late lanes. tiled: the only two, in either order."""
    if rank < 2:
        return ()
    found = itertools.permutations(tiled or range(rank), 2)
    orders = sorted(found, key=lambda order: (order[0] < order[1], order[::-1]), reverse=True)
    orders.sort(key=lambda order: order != (rank - 2, rank - 1))
    return tuple(orders[:1] if primitive.startswith("scatter") else orders)


def _even_tiles(partial: Partial, shape: Sequence[int], dim: int, count: int) -> bool:
    """Whether the parts of a sum of this shape scattered onto a dim lie in even numbers of tiles, in memory
    where they take the least."""
    shard = [extent // count if d == dim else extent for d, extent in enumerate(shape)]
    if not partial.tiles:
        return False
    row, lane = min(partial.tiles, key=lambda order: _padded(shard, *order))
    lying = [*(d for d in range(len(shard)) if d not in (row, lane)), row, lane]
    before = [shard[d] for d in lying[: lying.index(dim)]]
    if before and set(before) == {1}:
        return False
    if lane == dim:
        return shard[dim] * partial.itemsize % (4 * LANES) == 0
    if row != dim:
        return True
    if before:  # a part is in pieces, of whole tiles each
        return shard[dim] * partial.itemsize >= 4 * SUBLANES
    whole = _padded(shard, row, lane) // (SUBLANES * LANES)
    return shard[dim] > SUBLANES or (shard[dim] == SUBLANES and whole % 2 == 0)


def _padded(shard: list[int], row: int, lane: int) -> int:
    """Elements in memory, whole tiles counted."""
    extra = {row: SUBLANES, lane: LANES}
    return math.prod(math.ceil(n / extra.get(d, 1)) * extra.get(d, 1) for d, n in enumerate(shard))
