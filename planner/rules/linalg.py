"""Matrix factorisations and Fourier transforms: batches split, what is transformed stays whole."""

import math
from collections.abc import Callable

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Params, build, elements, letters, per_operand, per_result


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


def _cubic(factor: float) -> Callable[[Params, Avals, Avals], float]:
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
    "cholesky": Entry(matrix, _cubic(1 / 3)),
    "eig": Entry(matrix, _cubic(25.0)),
    "eigh": Entry(matrix, _cubic(9.0)),
    "fft": Entry(fft, _fft_flops),
    "hessenberg": Entry(matrix, _cubic(10 / 3)),
    "householder_product": Entry(matrix, _cubic(4 / 3)),
    "lu": Entry(matrix, _cubic(2 / 3)),
    "lu_pivots_to_permutation": Entry(matrix, per_result(1.0)),
    "qr": Entry(matrix, _cubic(4 / 3)),
    "schur": Entry(matrix, _cubic(25.0)),
    "svd": Entry(matrix, _cubic(21.0)),
    "triangular_solve": Entry(matrix, _solve_flops),
    "tridiagonal": Entry(matrix, _cubic(4 / 3)),
    "tridiagonal_solve": Entry(matrix, per_operand(8.0)),
}
