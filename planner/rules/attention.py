"""Attention as one kernel: the primitives of `jax.nn.dot_product_attention(implementation="cudnn")`.

The kernel keeps the scores on the chip: what stands in memory are queries, keys, values, the result and one
number a query and head (Dao 2023, arXiv 2307.08691). Batch and heads may be split; queries that share a key
head are neighbours, so their heads are `(m g)`. The backward pass multiplies five times where the forward
pass does twice, because it makes the scores again.
"""

from collections.abc import Mapping, Sequence

from planner.graph.rule import Rule
from planner.rules.entry import Avals, Entry, Name, Params, build

_CAUSAL = ("CAUSAL", "PADDING_CAUSAL")
_HEADS_FIRST = 1  # of jax's two layouts, [batch, heads, time, width]


def _dims(params: Params, time: str, heads: Name, width: str) -> list[Name]:
    return ["b", heads, time, width] if params["layout"] == _HEADS_FIRST else ["b", time, heads, width]


def _counts(params: Params, operands: Avals) -> tuple[int, int, int]:
    """Query heads, key heads, and the dim of time."""
    place = 1 if params["layout"] == _HEADS_FIRST else 2
    return operands[0].shape[place], operands[1].shape[place], 3 - place


def _parts(params: Params, operands: Avals) -> dict[str, list[Name]]:
    """The factors of every sort of array."""
    queries, keys, _ = _counts(params, operands)
    heads: Name = "m" if queries == keys else ("m", "g")
    biases: list[Name] = ["b", "v", "t", "s"] if len(operands[3].shape) == 4 else ["none"]
    return {
        "query": _dims(params, "t", heads, "h"),
        "key": _dims(params, "s", "m", "h"),
        "value": _dims(params, "s", "m", "w"),
        "result": _dims(params, "t", heads, "w"),
        "bias": biases,
        "row": ["b", heads, "t"],
    }


def _built(
    params: Params,
    operands: Avals,
    results: Avals,
    ins: Mapping[int, Sequence[Name]],
    outs: Sequence[Sequence[Name]],
) -> Rule:
    """ins: the factors of some operands, by place; the dims of the others stand for nothing else."""
    queries, keys, _ = _counts(params, operands)
    names = [ins.get(k, [f"u{k}v{dim}" for dim in range(len(aval.shape))]) for k, aval in enumerate(operands)]
    factors = {
        f for dims in (*names, *outs) for dim in dims for f in ((dim,) if isinstance(dim, str) else dim)
    }
    sizes = {"m": keys, "g": queries // keys}
    return build(names, outs, operands, results, whole=factors - {"b", "m"}, sizes=sizes)


def attention_forward(params: Params, operands: Avals, results: Avals) -> Rule:
    """`b t! (m g) h!, b s! m h!, b s! m w! -> b t! (m g) w!, b (m g) t!`."""
    of = _parts(params, operands)
    ins = {0: of["query"], 1: of["key"], 2: of["value"], 3: of["bias"]}
    return _built(params, operands, results, ins, [of["result"], of["row"]][: len(results)])


def attention_backward(params: Params, operands: Avals, results: Avals) -> Rule:
    """Operands of the forward pass, its results, and the gradient of the first -> gradients of the former."""
    of = _parts(params, operands)
    ins = {0: of["query"], 1: of["key"], 2: of["value"], 3: of["bias"]}
    ins |= {10: of["row"], 11: of["result"], 12: of["result"]}
    outs = [of["query"], of["key"], of["value"], of["bias"]][: len(results)]
    return _built(params, operands, results, ins, outs)


def _points(params: Params, operands: Avals) -> float:
    """Pairs of a query and a key that is not masked out, over batch and heads, times the width of a head."""
    heads, _, time = _counts(params, operands)
    query, key = operands[0].shape, operands[1].shape
    pairs = float(query[time] * key[time])
    window = params["sliding_window_length"]
    if getattr(params["mask_type"], "name", "") in _CAUSAL:
        seen = min(window or key[time], key[time])
        pairs = query[time] * seen - seen * seen / 2
    return query[0] * heads * pairs * (query[3] + operands[2].shape[3]) / 2


def _forward_flops(params: Params, operands: Avals, results: Avals) -> float:
    """Scores, and the sum of values: a multiply-add for each point of both."""
    return 4.0 * _points(params, operands)


def _backward_flops(params: Params, operands: Avals, results: Avals) -> float:
    """The scores again, and a gradient each of weights, values, queries and keys."""
    return 10.0 * _points(params, operands)


TABLE = {
    "dot_product_attention_bwd_wrapper": Entry(attention_backward, _backward_flops),
    "dot_product_attention_fwd_wrapper": Entry(attention_forward, _forward_flops),
}
