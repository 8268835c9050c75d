"""Labels: what a dim of the program stands for, in FlexFlow's words.

'sample' is the dim along which the examples of a batch lie, 'attribute' another dim of the examples (sequence,
height, width), 'parameter' a dim that comes from the state (features, heads, vocabulary). The named schemes are
defined by labels ("data: axes on sample factors only"); the search itself does not need them.

A label starts at the arguments and flows along the factors of the rules; where two meet, the first of LABELS wins.
"""

from collections import Counter

from planner.graph.graph import Graph, Op
from planner.graph.rule import Dims

SAMPLE, ATTRIBUTE, PARAMETER, NONE = "sample", "attribute", "parameter", ""
LABELS = (SAMPLE, ATTRIBUTE, PARAMETER, NONE)
_RANK = {label: i for i, label in enumerate(LABELS)}


def join(a: str, b: str) -> str:
    """The stronger of two labels.

    >>> join("parameter", "sample")
    'sample'
    """
    return a if _RANK[a] <= _RANK[b] else b


def label_factors(graph: Graph) -> dict[tuple[int, str], str]:
    """The label of every (op id, factor). Two sweeps, because a loop carry is read before it is written."""
    dims = argument_labels(graph)
    factors: dict[tuple[int, str], str] = {}
    for _ in range(2):
        for op in graph.ops:
            _sweep(op, dims, factors)
    return factors


def batch_extent(graph: Graph) -> int | None:
    """Number of examples of a step: the commonest leading extent of the arguments that no result replaces."""
    counts = Counter(graph.values[v].shape[0] for v in _data_arguments(graph))
    return counts.most_common(1)[0][0] if counts else None


def _data_arguments(graph: Graph) -> list[int]:
    """Arguments that are examples: arrays with a dim that no result replaces, keys left out."""
    found = []
    for leaf in graph.arguments:
        value = graph.values[leaf.value]
        key = value.dtype.startswith("key<") or (value.dtype == "uint32" and value.shape[-1:] in ((2,), (4,)))
        if leaf.partner is None and value.shape and not key:
            found.append(leaf.value)
    return found


def argument_labels(graph: Graph) -> dict[int, tuple[str, ...]]:
    """The label of every dim of the arguments."""
    data, batch = set(_data_arguments(graph)), batch_extent(graph)
    labels = {}
    for leaf in graph.arguments:
        shape = graph.values[leaf.value].shape
        if leaf.value in data and shape[0] == batch:
            labels[leaf.value] = (SAMPLE, *(ATTRIBUTE for _ in shape[1:]))
        else:
            labels[leaf.value] = tuple(PARAMETER for _ in shape)
    return labels


def _sweep(op: Op, dims: dict[int, tuple[str, ...]], factors: dict[tuple[int, str], str]) -> None:
    own = {factor: factors.get((op.id, factor), NONE) for factor in op.rule.factors}
    for value, operand in zip(op.operands, op.rule.operands, strict=True):
        if value in dims:
            _read(operand, dims[value], own)
    for value, result in zip(op.results, op.rule.results, strict=True):
        known = dims.get(value, ())
        if known:  # a second sweep: keep what a loop carry learned
            _read(result, known, own)
        dims[value] = tuple(own[dim[0]] if dim else NONE for dim in result)
    factors.update({(op.id, factor): label for factor, label in own.items()})


def _read(operand: Dims, labels: tuple[str, ...], own: dict[str, str]) -> None:
    for dim, label in zip(operand, labels, strict=False):
        for i, factor in enumerate(dim):  # the label of a merged dim is that of its major factor
            own[factor] = join(own[factor], label if i == 0 else (ATTRIBUTE if label == SAMPLE else label))
