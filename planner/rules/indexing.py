"""Gather, scatter and dynamic updates: places that depend on data.

A gathered dim may be split: every device looks up the rows it holds, gives zeros for the others, and the sum
over devices is the answer. Its factor is therefore reduced.
"""

import dataclasses
from collections.abc import Sequence

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Params, build, elements, letters, no_flops

ACCUMULATING = ("scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")


@dataclasses.dataclass(frozen=True)
class _Window:
    """What gather and scatter have in common, seen from the big array.

    operand, indices, window: factors of the array, of the indices, and of a gather's result or a scatter's
    updates; batch: those of the indices that are not also dims of the array; whole: those that stay whole.
    """

    operand: list[str]
    indices: list[str]
    window: list[str]
    batch: list[str]
    whole: list[str]


def _window(
    shape: Sequence[int],
    index_rank: int,
    window_shape: Sequence[int],
    offset_dims: Sequence[int],
    collapsed: Sequence[int],
    indexed: Sequence[int],
    batching: tuple[Sequence[int], Sequence[int]],
) -> _Window:
    """Factors v of indexed dims, d of dims taken whole, b of the dims of the indices, p of the index vector.

    Of a dim of which a longer piece is taken, neither the dim (s) nor the piece (t) may be split.
    """
    batch = {dim: f"b{i + 1}" for i, dim in enumerate(range(index_rank - 1))}
    operand = [""] * len(shape)
    for ours, theirs in zip(*batching, strict=True):
        operand[ours] = batch[theirs]
    whole = ["p"]
    window = [""] * len(window_shape)
    offsets = iter(sorted(offset_dims))
    for dim, extent in enumerate(shape):
        if operand[dim]:
            continue
        offset = None if dim in collapsed else next(offsets)
        piece = 1 if offset is None else window_shape[offset]
        if piece == extent:
            operand[dim] = f"d{dim + 1}"
        elif piece == 1 and dim in indexed:
            operand[dim] = f"v{dim + 1}"
        else:
            operand[dim] = f"s{dim + 1}"
            whole += [f"s{dim + 1}", f"t{dim + 1}"]
        if offset is not None:
            window[offset] = operand[dim].replace("s", "t") if piece != 1 else "_"
    free = iter(batch[d] for d in range(index_rank - 1))
    window = [name or next(free) for name in window]
    own = [name for dim, name in batch.items() if dim not in batching[1]]
    return _Window(operand, [*batch.values(), "p"], window, own, whole)


def gather(params: Params, operands: Avals, results: Avals) -> Rule:
    """`v1 d2, b1 b2 _ -> b1 b2 d2`: rows looked up by number; v1 is reduced, see the module.

    take_along_axis is `b1 v2, b1 b2 _ -> b1 b2`: b1 is a dim of the array and of the indices.
    """
    numbers = params["dimension_numbers"]
    found = _window(
        operands[0].shape,
        len(operands[1].shape),
        results[0].shape,
        numbers.offset_dims,
        (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims),
        numbers.start_index_map,
        (numbers.operand_batching_dims, numbers.start_indices_batching_dims),
    )
    return build([found.operand, found.indices], [found.window], operands, results, whole=found.whole)


def _scatter(params: Params, operands: Avals, results: Avals, accumulates: bool) -> Rule:
    numbers = params["dimension_numbers"]
    found = _window(
        operands[0].shape,
        len(operands[1].shape),
        operands[2].shape,
        numbers.update_window_dims,
        (*numbers.inserted_window_dims, *numbers.operand_batching_dims),
        numbers.scatter_dims_to_operand_dims,
        (numbers.operand_batching_dims, numbers.scatter_indices_batching_dims),
    )
    whole = found.whole if accumulates else [*found.whole, *found.batch]
    rows = [found.operand, found.indices, found.window]
    return build(rows, [found.operand], operands, results, whole=whole)


def scatter_add(params: Params, operands: Avals, results: Avals) -> Rule:
    """`v1 d2, b1 b2 _, b1 b2 d2 -> v1 d2`: the transpose of a lookup.

    b1 and b2 are reduced: each device adds up its own updates. The operand must be counted once among those
    partial sums, so XLA adds it on one device and zeros on the others. v1 is free: each device keeps
    the updates that fall into its rows.
    """
    return _scatter(params, operands, results, accumulates=True)


def scatter(params: Params, operands: Avals, results: Avals) -> Rule:
    """`v1 d2, b1! _, b1! d2 -> v1 d2`: overwriting; updates stay together, as the last one wins."""
    return _scatter(params, operands, results, accumulates=False)


def _scatter_flops(_params: Params, operands: Avals, _results: Avals) -> float:
    """One combination per update."""
    return float(elements(operands[2]))


def dynamic_update_slice(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a! b, c! b, , -> a! b`: a dim that is partly overwritten stays whole.

    Where one row is overwritten, `a b, _ b, , -> a b`, it splits: the device that holds the row writes it.
    """
    old, new = operands[0].shape, operands[1].shape
    names, own = letters(len(old)), letters(len(old), len(old))
    partial = [m not in (n, 1) for n, m in zip(old, new, strict=True)]
    update = [b if part else a for a, b, part in zip(names, own, partial, strict=True)]
    whole = [n for a, b, part in zip(names, own, partial, strict=True) if part for n in (a, b)]
    return build([names, update, *(() for _ in operands[2:])], [names], operands, results, whole=whole)


TABLE = {
    "dynamic_update_slice": Entry(dynamic_update_slice),
    "gather": Entry(gather, no_flops),
    "scatter": Entry(scatter, no_flops),
    **{name: Entry(scatter_add, _scatter_flops) for name in ACCUMULATING},
}
