"""Random numbers and other arrays made from nothing: each device makes its own part.

A typed key is a scalar of its own dtype; a raw key has a last dim of words, which stays whole. The counter of
the partitionable threefry (the default) is an iota, so a part of the numbers is made without the rest.
"""

from planner.graph.rule import Rule
from planner.rules.elementwise import pointwise
from planner.rules.entry import Avals, Entry, Params, build, elements, letters, no_flops, per_result

MAKERS = ("empty", "empty2", "iota", "iota_2x32_shape", "platform_index", "rng_uniform")
KEYWISE = ("random_clone", "random_fold_in", "random_seed")
THREEFRY = 60.0  # per 32-bit word: 20 rounds of add, rotate (3), xor and 6 key injections make 2 words


def made(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`-> a b`: nothing but scalars go in."""
    names = [letters(len(v.shape)) for v in results]
    scalars = [letters(len(v.shape), 100) for v in operands]
    return build(scalars, names, operands, results, whole=[n for dims in scalars for n in dims])


def from_keys(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a -> a b c`: each key of an array of keys makes an array of numbers, or of keys.

    Keys of the hardware generator (rbg) make one stream, which depends on how it is cut: `a! -> a! b!`.
    """
    names = letters(len(results[0].shape))
    whole = names if "rbg" in str(operands[0].dtype) else ()
    return build([names[: len(operands[0].shape)]], [names], operands, results, whole=whole)


def words(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`a b! -> a` or back: typed keys and the words they consist of."""
    names = letters(max(len(operands[0].shape), len(results[0].shape)))
    left, right = names[: len(operands[0].shape)], names[: len(results[0].shape)]
    return build([left], [right], operands, results, whole=names[min(len(left), len(right)) :])


def stream(_params: Params, operands: Avals, results: Avals) -> Rule:
    """`k! -> k!, a! b!`: the hardware generator; XLA's numbers would change with the number of devices."""
    key, bits = letters(len(operands[0].shape)), letters(len(results[1].shape), 10)
    return build([key], [key, bits], operands, results, whole=(*key, *bits))


def _stream_flops(_params: Params, _operands: Avals, results: Avals) -> float:
    """Philox-4x32-10 (Salmon et al. 2011): ten rounds of 4 products, 4 xors and 2 additions make 4 words."""
    return 25.0 * elements(results[1])


def _bits_flops(params: Params, operands: Avals, results: Avals) -> float:
    """Threefry hashes a counter for each word of 32 bits."""
    return per_result(THREEFRY * max(32, params.get("bit_width", 32)) / 32)(params, operands, results)


TABLE = {
    "random_bits": Entry(from_keys, _bits_flops, light=True),
    "random_gamma": Entry(pointwise, per_result(10 * THREEFRY)),
    "random_split": Entry(from_keys, per_result(2 * THREEFRY), light=True),
    "random_unwrap": Entry(words, light=True),
    "random_wrap": Entry(words, light=True),
    "rng_bit_generator": Entry(stream, _stream_flops),
    "threefry2x32": Entry(pointwise, per_result(2 * THREEFRY), light=True),
    **{name: Entry(pointwise, per_result(2 * THREEFRY), light=True) for name in KEYWISE},
    **{name: Entry(made, no_flops, light=True) for name in MAKERS},
}
