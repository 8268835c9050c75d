"""What a compiler makes of a planned collective: the kind it writes, and the width of what it moves.

The plan asks for an all-gather or a reduce-scatter; the bytes on the wire follow from what the compiler of
the machine writes for it. Each rule stands here once, with what it was read from.

CPU     A reduce-scatter is an all-reduce of which every device keeps a slice. The all-reduces for a sum over
        several dims, one for each, are not joined.
TPU     Read from programs compiled ahead of time by libtpu 0.0.42 for v5e:4x4 and v5p:2x2x2:
        - float32 operands of matmuls and convolutions of default precision are rounded to bfloat16 first,
          and moved so, also through the slices of a scan, transposes and reshapes; sums stay float32.
        - A vector is gathered by an all-gather if each device holds whole rows of 128 elements, else by an
          all-reduce of the vector with zeros in the other devices' places.
"""

from collections import defaultdict

from planner.graph.graph import Graph, Op

LANES = 128
_ROUNDING = frozenset({"dot_general", "conv_general_dilated"})
_PASSING = frozenset({"scan_slice", "transpose", "reshape"})


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
        rounds = op.primitive in _ROUNDING
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
