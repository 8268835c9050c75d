"""Ops that combine elements along a dim: reductions, windows, running sums, sorts, selections."""

import math
from collections.abc import Sequence

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Params, build, elements, letters, per_operand

REDUCTIONS = (
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
)
RUNNING = ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
WINDOWS = (
    "reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum",
    "select_and_gather_add", "select_and_scatter_add",
)  # fmt: skip


def _kept(rank: int, axes: Sequence[int]) -> list[int]:
    return [dim for dim in range(rank) if dim not in axes]


def reduce(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b -> a`: splitting b leaves partial sums (or maxima, products, ...)."""
    names = letters(len(operands[0].shape))
    return build([names], [[names[d] for d in _kept(len(names), params["axes"])]], operands, results)


def reduce_by(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b!, -> a`: reduced by a function of the user's, or to an index, which no collective finishes."""
    axes = params.get("axes", params.get("dimensions", ()))
    names = letters(max(len(v.shape) for v in operands))
    left = [names[: len(v.shape)] for v in operands]
    right = [[names[d] for d in _kept(len(names), axes)]] * len(results)
    return build(left, right, operands, results, whole=[names[d] for d in axes])


def along(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! -> a b!`: every element along the op's dim depends on the others."""
    names = letters(len(operands[0].shape))
    axis = params["axis"] if "axis" in params else params["dimension"]
    return build([names] * len(operands), [names] * len(results), operands, results, whole=[names[axis]])


def top(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! -> a c!, a c!`: the largest of a dim, and where they were."""
    rank = len(operands[0].shape)
    names = letters(rank)
    axis = params.get("axis", params.get("reduction_dimension", -1)) % rank
    chosen = [*names[:axis], "z", *names[axis + 1 :]]
    return build([names], [chosen] * len(results), operands, results, whole=[names[axis], "z"])


def window(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b!, -> a c!`: dims the window moves over stay whole, others split. Start values are scalars.

    The larger of the arrays is the one the window moves over; in the backward pass that is a result.
    """
    rank = len(results[0].shape)
    still = _still(params, rank)
    fine, moved = letters(rank), letters(rank, rank)
    coarse = [a if stays else b for a, b, stays in zip(fine, moved, still, strict=True)]
    largest = max((tuple(v.shape) for v in (*operands, *results)), key=math.prod)
    rows = [(fine if tuple(v.shape) == largest else coarse) if v.shape else () for v in (*operands, *results)]
    whole = [n for a, b, stays in zip(fine, moved, still, strict=True) if not stays for n in (a, b)]
    return build(rows[: len(operands)], rows[len(operands) :], operands, results, whole=whole)


def _still(params: Params, rank: int) -> list[bool]:
    """Per dim, whether the window is one wide and moves one by one over an unpadded, undilated array."""
    sizes, strides, padding = params["window_dimensions"], params["window_strides"], params["padding"]
    base = params.get("base_dilation") or (1,) * rank
    return [sizes[d] == strides[d] == base[d] == 1 and tuple(padding[d]) == (0, 0) for d in range(rank)]


def _window_flops(params: Params, operands: Avals, results: Avals) -> float:
    """One combination for each element of each window."""
    windows = min(elements(v) for v in (*operands, *results) if v.shape)
    return float(windows * math.prod(params["window_dimensions"]))


def _sort_flops(params: Params, operands: Avals, _results: Avals) -> float:
    """n log2 n comparisons along the sorted dim."""
    axis = params.get("dimension", params.get("axis", params.get("reduction_dimension", -1)))
    return elements(operands[0]) * math.log2(max(2, operands[0].shape[axis]))


TABLE = {
    "approx_top_k": Entry(top, _sort_flops),
    "argmax": Entry(reduce_by, per_operand(1.0), light=True),
    "argmin": Entry(reduce_by, per_operand(1.0), light=True),
    "reduce": Entry(reduce_by, per_operand(1.0), light=True),
    "sort": Entry(along, _sort_flops),
    "top_k": Entry(top, _sort_flops),
    **{name: Entry(reduce, per_operand(1.0), light=True) for name in REDUCTIONS},
    **{name: Entry(along, per_operand(1.0)) for name in RUNNING},
    **{name: Entry(window, _window_flops) for name in WINDOWS},
}
