"""Ops that combine elements along a dim: reductions, windows, running sums, sorts, selections."""

import math
from collections.abc import Sequence

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Params, build, elements, letters, per_operand
from planner.rules.sliding import Slide, slide

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
    "reduce_window",
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "select_and_gather_add",
)


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
    """`a x~1+1 -> a x`, `a (x s) -> a x`: a window slides over arrays, all alike; start values are scalars.

    Dims it slides along split with a halo, or stay whole (see `planner.rules.sliding`).
    """
    slides = _slides(params, operands[0].shape, results[0].shape)
    rows = [[one.array for one in slides] if v.shape else () for v in operands]
    halos = {(k, d): one.halo for k, v in enumerate(operands) if v.shape for d, one in enumerate(slides)}
    sizes = dict(pair for one in slides for pair in one.sizes)
    whole = [name for one in slides for name in one.whole]
    after = [[one.result for one in slides]] * len(results)
    return build(rows, after, operands, results, whole=whole, sizes=sizes, halos=halos)


def scatter_to_selected(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a x, a (x s) -> a (x s)`: the gradient of pooling. Where windows overlap or are padded the dim stays
    whole, `a y!, a x! -> a x!`: all windows of an element say what is added to it."""
    slides = _slides(params, operands[1].shape, operands[0].shape)
    for d, (size, step) in enumerate(zip(params["window_dimensions"], params["window_strides"], strict=True)):
        if size > step or any(params["padding"][d]):
            x, y = f"x{d + 1}", f"y{d + 1}"
            slides[d] = Slide(x, "", y, whole=(x, y))
    coarse, fine = [one.result for one in slides], [one.array for one in slides]
    inner = dict(pair for one in slides for pair in one.sizes)
    whole = [name for one in slides for name in one.whole]
    return build([coarse, fine], [fine], operands, results, whole=whole, sizes=inner)


def _slides(params: Params, before: Sequence[int], after: Sequence[int]) -> list[Slide]:
    """How the window moves along each dim of an array of shape `before`, with a result of shape `after`."""
    rank = len(before)
    ones = (1,) * rank
    holes, dilation = (params.get(name) or ones for name in ("base_dilation", "window_dilation"))
    return [
        slide(
            str(d + 1),
            before[d],
            params["window_dimensions"][d],
            after[d],
            stride=params["window_strides"][d],
            low=params["padding"][d][0],
            holes=holes[d],
            dilation=dilation[d],
        )
        for d in range(rank)
    ]


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
    "select_and_scatter_add": Entry(scatter_to_selected, _window_flops),
    "sort": Entry(along, _sort_flops),
    "top_k": Entry(top, _sort_flops),
    **{name: Entry(reduce, per_operand(1.0), light=True) for name in REDUCTIONS},
    **{name: Entry(along, per_operand(1.0)) for name in RUNNING},
    **{name: Entry(window, _window_flops) for name in WINDOWS},
}
