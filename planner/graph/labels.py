"""Labels: what a dim of the program stands for, in FlexFlow's words.

'sample' is the dim along which the examples of a batch lie, 'attribute' another dim of the examples
(sequence, height, width), 'parameter' a dim of the state (features, heads, vocabulary). The named schemes are
defined by labels ("data: axes on sample factors only"); the search itself does not need them.

Dims that some op walks with one factor form a class (union-find over the whole step), and a class has one
label: sample if an example lies along it; else parameter if it is contracted with a weight somewhere; else
that of the arguments it comes from. The minor part of a merged dim, `e` in `(h e)`, belongs to no argument:
it takes the label of the whole.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from planner.graph.classes import Classes
from planner.graph.graph import Graph

SAMPLE, ATTRIBUTE, PARAMETER, NONE = "sample", "attribute", "parameter", ""
LABELS = (SAMPLE, ATTRIBUTE, PARAMETER, NONE)
_RANK = {label: i for i, label in enumerate(LABELS)}


def join(a: str, b: str) -> str:
    """The stronger of two labels.

    >>> join("parameter", "sample")
    'sample'
    """
    return a if _RANK[a] <= _RANK[b] else b


@dataclasses.dataclass(frozen=True)
class Labels:
    """factors: the label of every (op id, factor). arguments: of every dim of the step's arguments, by value
    id."""

    factors: Mapping[tuple[int, str], str]
    arguments: Mapping[int, tuple[str, ...]]


def label(graph: Graph) -> Labels:
    """The labels of a step."""
    classes = _walked_together(graph)
    labels: dict[_Key, str] = {}
    given = _argument_labels(graph)
    for value, dims in given.items():
        for dim, own in enumerate(dims):
            root = classes.find((value, dim))
            labels[root] = join(labels.get(root, NONE), own)
    for root in _contracted(graph, classes, labels):
        labels[root] = PARAMETER
    for op in graph.ops:
        for dims in op.rule.operands + op.rule.results:
            for dim in dims:
                whole = labels.get(classes.find((op.id, dim[0])), NONE) if len(dim) > 1 else NONE
                for minor in dim[1:]:
                    labels.setdefault(classes.find((op.id, minor)), ATTRIBUTE if whole == SAMPLE else whole)
    factors = {
        (op.id, f): labels.get(classes.find((op.id, f)), NONE) for op in graph.ops for f in op.rule.factors
    }
    arguments = {
        v: tuple(labels.get(classes.find((v, i)), NONE) for i in range(len(dims)))
        for v, dims in given.items()
    }
    return Labels(factors, arguments)


_Key = tuple[int, int | str]  # (value id, dim) or (op id, factor)


def _walked_together(graph: Graph) -> Classes[_Key]:
    """Dims of values and factors of ops that walk together."""
    classes: Classes[_Key] = Classes()
    for op in graph.ops:
        values, rules = (*op.operands, *op.results), op.rule.operands + op.rule.results
        for value, dims in zip(values, rules, strict=True):
            if value is not None:
                for i, dim in enumerate(dims):
                    if dim:
                        classes.unite((op.id, dim[0]), (value, i))
    return classes


def _contracted(graph: Graph, classes: Classes[_Key], labels: dict[_Key, str]) -> list[_Key]:
    """Classes that a heavy op contracts with an operand that has no examples: a weight."""
    found = []
    for op in graph.ops:
        if op.light or not op.rule.reduced or len(op.rule.operands) < 2:
            continue
        seen = [
            any(labels.get(classes.find((op.id, dim[0]))) == SAMPLE for dim in dims if dim)
            for dims in op.rule.operands
        ]
        roots = [classes.find((op.id, f)) for f in op.rule.reduced]
        if not all(seen[:2]):
            found += [root for root in roots if labels.get(root) != SAMPLE]
    return found


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


def _argument_labels(graph: Graph) -> dict[int, tuple[str, ...]]:
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
