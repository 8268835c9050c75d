"""Ops that move elements without computing: reshape, transpose, broadcast, pad, slice, concatenate, ..."""

import math
from collections.abc import Iterator, Sequence

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Name, Params, build, letters

Shape = Sequence[int]


def reshape(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a (b c) -> a b c`: runs of dims with equal products share the factors both sides can be cut into.

    Where the cuts of a run do not nest, (6, 4) -> (8, 3), its dims stay whole. `dimensions`, where given, is
    the order in which the operand's dims are read.
    """
    order = params.get("dimensions") or range(len(operands[0].shape))
    before, after = [operands[0].shape[d] for d in order], results[0].shape
    left: list[Name] = ["_"] * len(before)
    right: list[Name] = ["_"] * len(after)
    sizes: dict[str, int] = {}
    whole: list[str] = []
    for olds, news in _runs(before, after):
        cuts = _cuts([before[d] for d in olds], [after[d] for d in news])
        for side, shape, dims in ((left, before, olds), (right, after, news)):
            if cuts is None:
                for dim in dims:
                    name = letters(1, len(sizes))[0]
                    side[dim], sizes[name] = name, shape[dim]
                    whole.append(name)
        if cuts is not None:
            names = letters(len(cuts), len(sizes))
            sizes.update(zip(names, cuts, strict=True))
            _deal(left, before, olds, names, cuts)
            _deal(right, after, news, names, cuts)
    placed = [left[place] for place in sorted(range(len(left)), key=order.__getitem__)]
    return build([placed], [right], operands, results, whole=whole, sizes=sizes)


def _runs(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Shortest runs of dims of equal product, in order; dims of extent one are left out."""
    olds, news = [d for d, n in enumerate(before) if n != 1], [d for d, n in enumerate(after) if n != 1]
    if 0 in before:
        yield olds, news
        return
    i = j = 0
    while i < len(olds):
        first_i, first_j = i, j
        old, new = before[olds[i]], after[news[j]]
        i, j = i + 1, j + 1
        while old != new:
            if old < new:
                old, i = old * before[olds[i]], i + 1
            else:
                new, j = new * after[news[j]], j + 1
        yield olds[first_i:i], news[first_j:j]


def _cuts(olds: Shape, news: Shape) -> list[int] | None:
    """Extents, major first, whose products make both sides' dims; None if one cut falls across another."""
    if 0 in olds:
        return None
    ends = sorted({math.prod(side[k:]) for side in (olds, news) for k in range(len(side))})
    steps = [1, *ends]
    if any(high % low for low, high in zip(steps, ends, strict=False)):
        return None
    return [high // low for low, high in zip(steps, ends, strict=False)][::-1]


def _deal(side: list[Name], shape: Shape, dims: list[int], names: Sequence[str], cuts: list[int]) -> None:
    """Give each dim of a run the factors whose product is its extent."""
    at = 0
    for dim in dims:
        first, product = at, 1
        while product < shape[dim]:
            product, at = product * cuts[at], at + 1
        side[dim] = tuple(names[first:at])


def transpose(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b -> b a`."""
    names = letters(len(operands[0].shape))
    return build([names], [[names[d] for d in params["permutation"]]], operands, results)


def broadcast_in_dim(params: Params, operands: Avals, results: Avals) -> Rule:
    """`b -> a b`: new and stretched dims are made by each device for itself. Further operands are sizes."""
    names = letters(len(results[0].shape))
    left = [[names[d] for d in params["broadcast_dimensions"]], *(() for _ in operands[1:])]
    return build(left, [names], operands, results)


def squeeze(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a _ b -> a b`."""
    names = letters(len(operands[0].shape))
    gone = [d % len(names) for d in params["dimensions"]]
    return build([names], [[n for d, n in enumerate(names) if d not in gone]], operands, results)


def rev(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! -> a b!`: a reversed dim stays whole."""
    names = letters(len(operands[0].shape))
    return build([names], [names], operands, results, whole=[names[d] for d in params["dimensions"]])


def _resize(moved: Sequence[bool], operands: Avals, results: Avals) -> Rule:
    """`a b! -> a c!`: dims that are `moved` stay whole on both sides; further operands are scalars."""
    names, after = letters(len(moved)), letters(len(moved), len(moved))
    left = [names, *(() for _ in operands[1:])]
    right = [b if move else a for a, b, move in zip(names, after, moved, strict=True)]
    whole = [n for a, b, move in zip(names, after, moved, strict=True) if move for n in (a, b)]
    return build(left, [right], operands, results, whole=whole)


def pad(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b!, -> a c!`: padded dims stay whole; the second operand is the scalar to pad with."""
    return _resize([tuple(config) != (0, 0, 0) for config in params["padding_config"]], operands, results)


def cut(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! -> a c!`: a slice, at places known beforehand or not; dims it takes part of stay whole."""
    moved = [old != new for old, new in zip(operands[0].shape, results[0].shape, strict=True)]
    return _resize(moved, operands, results)


def concatenate(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b!, a c! -> a d!`: the joined dim stays whole."""
    rank, dim = len(results[0].shape), params["dimension"]
    return _pieces(rank, dim, operands, results)


def split(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a d! -> a b!, a c!`: the dim that is cut stays whole."""
    return _pieces(len(operands[0].shape), params["axis"], operands, results)


def _pieces(rank: int, dim: int, operands: Avals, results: Avals) -> Rule:
    names = letters(rank)
    own = letters(len(operands) + len(results), rank)
    rows = [[*names[:dim], name, *names[dim + 1 :]] for name in own]
    return build(rows[: len(operands)], rows[len(operands) :], operands, results, whole=own)


def stack(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b, a b -> n! a b`: the new dim stays whole."""
    names = letters(len(operands[0].shape))
    axis = params["axis"] % (len(names) + 1)
    return build(
        [names] * len(operands), [[*names[:axis], "y", *names[axis:]]], operands, results, whole=["y"]
    )


def unstack(params: Params, operands: Avals, results: Avals) -> Rule:
    """`n! a b -> a b, a b`."""
    names = letters(len(results[0].shape)) if results else ()
    axis = params["axis"] % (len(names) + 1)
    return build(
        [[*names[:axis], "y", *names[axis:]]], [names] * len(results), operands, results, whole=["y"]
    )


def tile(params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b -> a (r b)`: a repeated dim can be split by the repeats, which every device makes for itself."""
    rank = len(operands[0].shape)
    names, repeats = letters(rank), letters(rank, rank)
    right = [(r, n) if times > 1 else n for r, n, times in zip(repeats, names, params["reps"], strict=True)]
    sizes = dict(zip((*names, *repeats), (*operands[0].shape, *params["reps"]), strict=True))
    return build([names], [right], operands, results, sizes=sizes)


TABLE = {
    "broadcast_in_dim": Entry(broadcast_in_dim, light=True),
    "concatenate": Entry(concatenate),
    "dynamic_slice": Entry(cut),
    "pad": Entry(pad, light=True),
    "reshape": Entry(reshape),
    "rev": Entry(rev, light=True),
    "slice": Entry(cut, light=True),
    "split": Entry(split, light=True),
    "squeeze": Entry(squeeze, light=True),
    "stack": Entry(stack),
    "tile": Entry(tile, light=True),
    "transpose": Entry(transpose, light=True),
    "unstack": Entry(unstack, light=True),
}
