"""Element-wise ops: every dim is a factor of its own, and all may be split.

FLOPs of one element are 1, or 0 where nothing is computed. For roots, transcendental and special functions
they are an order of magnitude only (a Newton step or two, a polynomial of some ten terms, a loop of those):
such ops wait for memory, so little hangs on it.
"""

import functools

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Params, Shaped, build, elements, letters, no_flops, per_result

PLAIN = (
    "abs", "add", "add_any", "and", "ceil", "clamp", "clz", "complex", "conj", "convert_element_type",
    "div", "eq", "eq_to", "floor", "ge", "gt", "imag", "is_finite", "le", "le_to", "lt", "lt_to", "max",
    "min", "mul", "mulhi", "ne", "neg", "nextafter", "not", "one_minus_square", "or",
    "population_count", "real", "reduce_precision", "rem", "round", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "square", "sub", "xor",
)  # fmt: skip
ROOTS = ("cbrt", "rsqrt", "sqrt")
TRANSCENDENTAL = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erf_inv", "erfc",
    "exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "pow", "sin", "sinh", "tan", "tanh",
)  # fmt: skip
SPECIAL = (
    "bessel_i0e", "bessel_i1e", "digamma", "igamma", "igamma_grad_a", "igammac", "lgamma", "polygamma",
    "regularized_incomplete_beta", "zeta",
)  # fmt: skip
UNCHANGED = (
    "copy", "device_put", "layout_constraint", "name",
    "optimization_barrier", "pvary", "reshard", "sharding_constraint", "stop_gradient",
    "with_memory_space_constraint", "zeros_like",
)  # fmt: skip


def pointwise(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b, a b -> a b`; a scalar or literal operand has no dims, a dim of extent one stretches."""
    return _pointwise(tuple(tuple(v.shape) for v in operands), tuple(tuple(v.shape) for v in results))


@functools.lru_cache(maxsize=4096)
def _pointwise(operands: tuple[tuple[int, ...], ...], results: tuple[tuple[int, ...], ...]) -> Rule:
    names = letters(max((len(shape) for shape in (*operands, *results)), default=0))
    left, right = [names[: len(shape)] for shape in operands], [names[: len(shape)] for shape in results]
    return build(left, right, [Shaped(s) for s in operands], [Shaped(s) for s in results])


def unchanged(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b, c -> a b, c`: each operand becomes the result of the same place, each with factors of its own."""
    if len(operands) == len(results) == 1:
        return pointwise(_params, operands, results)
    names, first = [], 0
    for value in operands:
        names.append(letters(len(value.shape), first))
        first += len(value.shape)
    return build(names, names[: len(results)], operands, results)


def bitcast(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b -> a b`, or `a b c! -> a b` where the element size changes and the last dim holds the pieces."""
    names = letters(max(len(operands[0].shape), len(results[0].shape)))
    common = min(len(operands[0].shape), len(results[0].shape))
    left, right = names[: len(operands[0].shape)], names[: len(results[0].shape)]
    return build([left], [right], operands, results, whole=names[common:])


def _power(params: Params, _operands: Avals, results: Avals) -> float:
    """x**n by repeated squaring: about log2 n squarings and as many products."""
    return per_result(max(1.0, 2.0 * abs(params["y"]).bit_length() - 2.0))(params, _operands, results)


def _polynomial(_params: Params, operands: Avals, results: Avals) -> float:
    """Horner's scheme: a multiply-add per coefficient behind the first."""
    return 2.0 * max(0, len(operands) - 2) * elements(results[0])


TABLE = {
    "bitcast_convert_type": Entry(bitcast, no_flops, light=True),
    "integer_pow": Entry(pointwise, _power, light=True),
    "polynomial": Entry(pointwise, _polynomial, light=True),
    **{name: Entry(pointwise, per_result(1.0), light=True) for name in PLAIN},
    **{name: Entry(pointwise, per_result(4.0), light=True) for name in ROOTS},
    **{name: Entry(pointwise, per_result(10.0), light=True) for name in TRANSCENDENTAL},
    **{name: Entry(pointwise, per_result(100.0), light=True) for name in SPECIAL},
    **{name: Entry(unchanged, no_flops, light=True) for name in UNCHANGED},
}
