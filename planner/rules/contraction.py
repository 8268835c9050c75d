"""Contractions: dot products, ragged dots and convolutions. A factor that is summed leaves partial sums."""

import math

from planner.graph.rule import Rule
from planner.graph.windows import meetings
from planner.rules.entry import Avals, Entry, Name, Params, Shaped, build, elements, numbered
from planner.rules.sliding import slide


def dot_general(params: Params, operands: Avals, results: Avals) -> Rule:
    """`b i k, b k j -> b i j`: batch b, rows i, columns j, contracted k, any number of each, anywhere."""
    left, right, result = _dot_names(params["dimension_numbers"], operands)
    return build([left, right], [result], operands, results)


def _dot_names(numbers, operands: Avals) -> tuple[list[str], list[str], list[str]]:
    """Factor of each dim of a dot's operands and of its result: batch, then left free, then right free."""
    (left_contract, right_contract), (left_batch, right_batch) = numbers
    batch, contract = numbered("b", len(left_batch)), numbered("k", len(left_contract))
    left_rank, right_rank = (len(v.shape) for v in operands[:2])
    left_free = [d for d in range(left_rank) if d not in (*left_contract, *left_batch)]
    right_free = [d for d in range(right_rank) if d not in (*right_contract, *right_batch)]
    rows, columns = numbered("i", len(left_free)), numbered("j", len(right_free))
    left = dict(zip((*left_batch, *left_contract, *left_free), (*batch, *contract, *rows), strict=True))
    right = dict(
        zip((*right_batch, *right_contract, *right_free), (*batch, *contract, *columns), strict=True)
    )
    return (
        [left[d] for d in range(left_rank)],
        [right[d] for d in range(right_rank)],
        [*batch, *rows, *columns],
    )


def _dot_flops(params: Params, operands: Avals, results: Avals) -> float:
    """A multiply and an add for each point of the loop nest."""
    return 2.0 * math.prod(dot_general(params, operands, results).sizes.values())


def ragged_dot_general(params: Params, operands: Avals, results: Avals) -> Rule:
    """`i! k, g! k j, g! -> i! j`: a dot whose ragged dim is cut into groups, a slice of the right side each.

    The ragged dim and the groups stay whole, since where a group begins depends on data; the rest splits as
    in a dot. Ragged over rows the groups are a dim of the right operand, over a contracted dim a dim of the
    result, `k! i, k! j, g! -> g! i j`.
    """
    numbers = params["ragged_dot_dimension_numbers"]
    group_dims = tuple(numbers.rhs_group_dimensions)
    kept = [d for d in range(len(operands[1].shape)) if d not in group_dims]
    (left_contract, right_contract), (left_batch, right_batch) = numbers.dot_dimension_numbers
    moved = (
        (left_contract, [kept.index(d) for d in right_contract]),
        (left_batch, [kept.index(d) for d in right_batch]),
    )
    left, short, result = _dot_names(moved, (operands[0], Shaped((1,) * len(kept))))
    right = ["g"] * len(operands[1].shape)
    for name, dim in zip(short, kept, strict=True):
        right[dim] = name
    if len(results[0].shape) > len(result):
        result = ["g", *result]
    ragged = {left[d] for d in numbers.lhs_ragged_dimensions}
    sizes_rank = len(operands[2].shape)
    groups = [*numbered("h", sizes_rank - 1), "g"] if sizes_rank else []
    return build([left, right, groups], [result], operands, results, whole={"g", *ragged, *groups})


def _ragged_flops(params: Params, operands: Avals, results: Avals) -> float:
    """Each row meets one group only, so the groups do not multiply the work."""
    sizes = ragged_dot_general(params, operands, results).sizes
    return 2.0 * math.prod(extent for factor, extent in sizes.items() if factor[0] not in "gh")


def scaled_matmul(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`b i (s k), b j (s k), b i s, b j s -> b i j`: rows in blocks of k numbers, each block with a scale."""
    block = operands[0].shape[-1] // operands[2].shape[-1]
    left, right = ("b", "i", ("s", "k")), ("b", "j", ("s", "k"))
    scales = ("b", "i", "s"), ("b", "j", "s")
    return build(
        [left, right, *scales], [("b", "i", "j")], operands, results,
        sizes={"s": operands[2].shape[-1], "k": block},
    )  # fmt: skip


def _scaled_flops(_params: Params, operands: Avals, results: Avals) -> float:
    """A multiply-add for each point of the loop nest; the scales are few."""
    return 2.0 * elements(results[0]) * operands[0].shape[-1]


def conv_general_dilated(params: Params, operands: Avals, results: Avals) -> Rule:
    """`n x~1+1 c, w! c o -> n x o`: batch n and features o split, input features c leave partial sums.

    Spatial dims split with a halo, or stay whole (see `planner.rules.sliding`). With feature groups the
    features are `(g c)` and `(g o)`, with batch groups the batch is `(g n)`: the group splits, what stands
    behind it does not.

    XLA's partitioner (jaxlib 0.10, on 2x2x2 CPU devices) computes wrong numbers where a spatial dim is split
    together with the features of the filter; in the gradient of a filter also where it is split together with
    any features, or where an axis of the mesh is idle: it adds up too often.
    """
    numbers = params["dimension_numbers"]
    groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    group = groups * batch_groups
    left: list[Name] = [""] * len(operands[0].shape)
    right, result = list(left), list(left)
    n, c, o = numbers.lhs_spec[0], numbers.lhs_spec[1], numbers.rhs_spec[0]
    left[n] = ("g", "n") if batch_groups > 1 else "n"
    left[c] = ("g", "c") if groups > 1 else "c"
    right[o] = result[numbers.out_spec[1]] = ("g", "o") if group > 1 else "o"
    right[numbers.rhs_spec[1]], result[numbers.out_spec[0]] = "c", "n"
    inner = {
        "g": group,
        "c": operands[1].shape[numbers.rhs_spec[1]],
        "n": results[0].shape[numbers.out_spec[0]],
        "o": operands[1].shape[o] // group,
    }
    whole: list[str] = []
    halos: dict[tuple[int, int], tuple[int, int]] = {}
    apart, filling = [], []
    for i, (x, w, y) in enumerate(_spatial(params)):
        found = slide(
            str(i + 1), operands[0].shape[x], operands[1].shape[w], results[0].shape[y], **_steps(params, i)
        )
        left[x], right[w], result[y] = found.array, found.window, found.result
        whole += found.whole
        inner.update(found.sizes)
        halos[0, x] = found.halo
        tile = found.array if isinstance(found.array, str) else found.array[0]
        if found.along:
            others = ("o", "g") if found.along == "result" else ("n", "o", "g")
            apart += [(tile, other) for other in others]
        if found.along == "window":
            filling.append(tile)
    rest = {"sizes": inner, "halos": halos, "apart": apart, "filling": filling}
    return build([left, right], [result], operands, results, whole=whole, **rest)


def _spatial(params: Params) -> list[tuple[int, int, int]]:
    """Dims of the array, the filter and the result that one spatial dim is."""
    numbers = params["dimension_numbers"]
    return list(zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True))


def _steps(params: Params, i: int) -> dict[str, int]:
    """How the filter moves along spatial dim i, in the words of `slide` and `meetings`."""
    return {
        "stride": params["window_strides"][i],
        "low": params["padding"][i][0],
        "holes": params["lhs_dilation"][i],
        "dilation": params["rhs_dilation"][i],
    }


def _conv_flops(params: Params, operands: Avals, results: Avals) -> float:
    """A multiply-add per output element and element of the input that its window meets."""
    numbers = params["dimension_numbers"]
    (left, right), result = (v.shape for v in operands[:2]), results[0].shape
    features = result[numbers.out_spec[0]] * result[numbers.out_spec[1]] * right[numbers.rhs_spec[1]]
    met = (
        meetings(left[x], right[w], result[y], **_steps(params, i))
        for i, (x, w, y) in enumerate(_spatial(params))
    )
    return 2.0 * features * math.prod(met)


TABLE = {
    "conv_general_dilated": Entry(conv_general_dilated, _conv_flops),
    "dot_general": Entry(dot_general, _dot_flops),
    "ragged_dot_general": Entry(ragged_dot_general, _ragged_flops),
    "scaled_matmul_wrapper": Entry(scaled_matmul, _scaled_flops),
}
