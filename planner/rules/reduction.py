"""Ops that combine elements along a dim: reductions, windows, running sums, sorts, selections, factorisations."""

import math
from collections.abc import Sequence

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Params, build, elements, letters, per_operand, per_result

REDUCTIONS = ("reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_xor")
RUNNING = ("cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum")
WINDOWS = (
    "reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum", "select_and_gather_add",
    "select_and_scatter", "select_and_scatter_add",
)  # fmt: skip


def _kept(rank: int, axes: Sequence[int]) -> list[int]:
    return [dim for dim in range(rank) if dim not in axes]


def reduce(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b -> a`: splitting b leaves partial sums (or maxima, products, ...)."""
    names = letters(len(operands[0].shape))
    return build([names], [[names[d] for d in _kept(len(names), params["axes"])]], operands, results)


def reduce_by(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! , -> a`: reduced by a function of the user's, or to an index, which no collective finishes."""
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
    """`a b!, -> a c!`: dims that the window moves over stay whole, the others split. Start values are scalars."""
    rank = len(results[0].shape)
    names, after = letters(rank), letters(rank, rank)
    still = _still(params, rank)
    coarse = [names[d] if still[d] else after[d] for d in range(rank)]
    fine_shape = max((tuple(v.shape) for v in (*operands, *results)), key=math.prod)

    def of(shape: tuple[int, ...]) -> Sequence[str]:
        if not shape:
            return ()
        return names if tuple(shape) == fine_shape else coarse

    whole = {*names, *after} - {names[d] for d in range(rank) if still[d]}
    return build([of(v.shape) for v in operands], [of(v.shape) for v in results], operands, results, whole=whole)


def _still(params: Params, rank: int) -> list[bool]:
    """Per dim, whether the window is one wide and moves one by one without padding."""
    ones = (1,) * rank
    sizes, strides = params["window_dimensions"], params["window_strides"]
    dilations = zip(params.get("base_dilation") or ones, params.get("window_dilation") or ones, strict=True)
    padding = params["padding"]
    return [
        sizes[d] == strides[d] == base == 1 and tuple(padding[d]) == (0, 0) for d, (base, _) in enumerate(dilations)
    ]


def _window_flops(params: Params, operands: Avals, results: Avals) -> float:
    """One combination for each element of each window."""
    windows = min(elements(v) for v in (*operands, *results) if v.shape)
    return float(windows * math.prod(params["window_dimensions"]))


def _sort_flops(params: Params, operands: Avals, _results: Avals) -> float:
    """n log2 n comparisons along the sorted dim."""
    axis = params.get("dimension", params.get("axis", params.get("reduction_dimension", -1)))
    return elements(operands[0]) * math.log2(max(2, operands[0].shape[axis]))


def matrix(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! c! -> a d!, a e! f!`: a batch of matrices; each is factored whole."""
    batch = min(len(v.shape) for v in (operands[0], *results))
    shape = operands[0].shape
    while batch and any(tuple(v.shape[:batch]) != tuple(shape[:batch]) for v in (*operands, *results)):
        batch -= 1
    batch = min(batch, len(shape) - 2)
    names, first, rows = letters(batch), batch, []
    for value in (*operands, *results):
        rest = len(value.shape) - batch
        rows.append((*names, *letters(rest, first)) if rest >= 0 else ())
        first += max(rest, 0)
    inner = {name for row in rows for name in row[batch:]}
    return build(rows[: len(operands)], rows[len(operands) :], operands, results, whole=inner)


def _cubic(factor: float):
    """`factor` m n min(m, n) FLOPs per matrix (Golub and Van Loan, Matrix Computations, 4th ed.)."""

    def flops(_params: Params, operands: Avals, _results: Avals) -> float:
        return factor * elements(operands[0]) * min(operands[0].shape[-2:])

    return flops


def _solve_flops(_params: Params, operands: Avals, _results: Avals) -> float:
    """n^2 FLOPs for each right-hand side."""
    return float(elements(operands[1]) * operands[0].shape[-1])


def fft(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! -> a c!`: the transformed dims stay whole."""
    lengths = params["fft_lengths"]
    rank = len(operands[0].shape)
    names = letters(rank - len(lengths))
    before, after = letters(len(lengths), rank), letters(len(lengths), 2 * rank)
    return build([(*names, *before)], [(*names, *after)], operands, results, whole=(*before, *after))


def _fft_flops(params: Params, operands: Avals, results: Avals) -> float:
    """5 n log2 n, the usual count of a radix-2 transform."""
    points = max(elements(operands[0]), elements(results[0]))
    return 5.0 * points * math.log2(max(2, math.prod(params["fft_lengths"])))


TABLE = {
    "approx_top_k": Entry(top, _sort_flops),
    "argmax": Entry(reduce_by, per_operand(1.0), light=True),
    "argmin": Entry(reduce_by, per_operand(1.0), light=True),
    "cholesky": Entry(matrix, _cubic(1 / 3)),
    "eig": Entry(matrix, _cubic(25.0)),
    "eigh": Entry(matrix, _cubic(9.0)),
    "fft": Entry(fft, _fft_flops),
    "geqp3": Entry(matrix, _cubic(4 / 3)),
    "geqrf": Entry(matrix, _cubic(4 / 3)),
    "hessenberg": Entry(matrix, _cubic(10 / 3)),
    "householder_product": Entry(matrix, _cubic(4 / 3)),
    "lu": Entry(matrix, _cubic(2 / 3)),
    "lu_pivots_to_permutation": Entry(matrix, per_result(1.0)),
    "qr": Entry(matrix, _cubic(4 / 3)),
    "reduce": Entry(reduce_by, per_operand(1.0), light=True),
    "schur": Entry(matrix, _cubic(25.0)),
    "sort": Entry(along, _sort_flops),
    "svd": Entry(matrix, _cubic(20.0)),
    "top_k": Entry(top, _sort_flops),
    "triangular_solve": Entry(matrix, _solve_flops),
    "tridiagonal": Entry(matrix, _cubic(4 / 3)),
    "tridiagonal_solve": Entry(matrix, per_operand(8.0)),
    **{name: Entry(reduce, per_operand(1.0), light=True) for name in REDUCTIONS},
    **{name: Entry(along, per_operand(1.0)) for name in RUNNING},
    **{name: Entry(window, _window_flops) for name in WINDOWS},
}
