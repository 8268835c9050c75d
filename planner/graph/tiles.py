"""Tiles: which two dims of a value lie in the tiles of a TPU, where it cannot lie as it pleases.

A convolution keeps batch and features in the tiles of what it reads and writes, and input and output features
in those of its filter: never the dims that its window slides over. The element-wise ops, the pooling and
the padding around it follow.
"""

from planner.graph.graph import Graph, Op
from planner.graph.rule import Dims

CONVOLUTION = "conv_general_dilated"
_FIXED = frozenset({"n", "c", "o", "g"})  # the factors of a convolution that do not slide

Pair = tuple[int, int]


def dims_in_tiles(graph: Graph) -> dict[int, Pair]:
    """For each value that a convolution reads or writes, and those made of one dim by dim, the two dims that
    lie in tiles, in order. A value that is not here lies so that the fewest of its bytes are padding.
    """
    found: dict[int, Pair] = {}
    for op in graph.ops:
        if op.primitive == CONVOLUTION:
            ports = zip((*op.operands, *op.results), (*op.rule.operands, *op.rule.results), strict=True)
            found.update(
                (value, pair) for value, dims in ports if value is not None and (pair := fixed_dims(dims))
            )
    for op in graph.ops:
        for value, dims in zip(op.operands, op.rule.operands, strict=True):
            if value in found and op.primitive != CONVOLUTION:
                _follow(op, dims, found[value], found)
    return found


def fixed_dims(dims: Dims) -> Pair | None:
    """The two dims of an array of a convolution that its window does not slide over, in order."""
    fixed = [i for i, dim in enumerate(dims) if _FIXED.intersection(dim)]
    return (fixed[0], fixed[1]) if len(fixed) == 2 else None


def _follow(op: Op, dims: Dims, pair: Pair, found: dict[int, Pair]) -> None:
    """The results of an op that keep an operand's two dims where they are lie as the operand does."""
    for result, made in zip(op.results, op.rule.results, strict=True):
        if len(made) == len(dims) and all(made[d] == dims[d] for d in pair):
            found.setdefault(result, pair)
