"""Labels: what a dim of the program stands for, in FlexFlow's words.

'sample' is the dim along which the examples of a batch lie, 'attribute' another dim of the examples
(sequence, height, width), 'parameter' a dim of the state (features, heads, vocabulary). The named schemes are
defined by labels ("data: axes on sample factors only"); the search itself does not need them.

Dims that some op walks with one factor form a class (union-find over the whole step), and a class has one
label: sample if an example lies along it; else parameter if it is contracted with a weight somewhere; else
that of the arguments it comes from. Examples lie along the first dim of an argument that no scan goes along:
micro-batches, and time, come before them. The minor part of a merged dim, `e` in `(h e)`, belongs to no
argument: it takes the label of the whole.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from planner.graph.classes import Classes
from planner.graph.graph import Graph

SAMPLE, ATTRIBUTE, PARAMETER, NONE = "sample", "attribute", "parameter", ""
LABELS = (SAMPLE, ATTRIBUTE, PARAMETER, NONE)
_RANK = {label: i for i, label in enumerate(LABELS)}
_Key = tuple[int, int | str]  # (value id, dim) or (op id, factor)


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
    given, cut = _argument_labels(graph, _scanned(graph, classes)), _scan_lengths(graph, classes)
    for value, dims in given.items():
        for dim, own in enumerate(dims):
            root = classes.find((value, dim))
            labels[root] = join(labels.get(root, NONE), own)
    merged = [
        (classes.find((op.id, dim[0])), classes.find((op.id, minor)))
        for op in graph.ops
        for dims in op.rule.operands + op.rule.results
        for dim in dims
        for minor in dim[1:]
    ]
    for major, minor in merged:
        if major in cut and labels.get(major) == SAMPLE:
            labels[minor] = SAMPLE
    for root in _contracted(graph, classes, labels):
        labels[root] = PARAMETER
    for major, minor in merged:
        whole = labels.get(major, NONE)
        labels.setdefault(minor, ATTRIBUTE if whole == SAMPLE else whole)
    factors = {
        (op.id, f): labels.get(classes.find((op.id, f)), NONE) for op in graph.ops for f in op.rule.factors
    }
    arguments = {
        v: tuple(labels.get(classes.find((v, i)), NONE) for i in range(len(dims)))
        for v, dims in given.items()
    }
    return Labels(factors, arguments)


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
    """Classes that a heavy op contracts with an operand that has no examples: a weight. A batch of one leaves
    no dim of examples to split; then their other dims tell."""
    found = []
    walked = {labels.get(classes.find((op.id, factor))) for op in graph.ops for factor in op.rule.factors}
    examples = SAMPLE if SAMPLE in walked else ATTRIBUTE
    for op in graph.ops:
        if op.light or not op.rule.reduced or len(op.rule.operands) < 2:
            continue
        for dims in op.rule.operands[:2]:
            roots = {dim[0]: classes.find((op.id, dim[0])) for dim in dims if dim}
            if all(labels.get(root) != examples for root in roots.values()):
                found += [root for factor, root in roots.items() if factor in op.rule.reduced]
    return found


def batch_extent(graph: Graph) -> int | None:
    """Number of examples of a step: the commonest extent of the dims that examples lie along."""
    return _commonest(graph, _sample_dims(graph, _scanned(graph, _walked_together(graph))))


def _commonest(graph: Graph, dims: Mapping[int, int]) -> int | None:
    counts = Counter(graph.values[value].shape[dim] for value, dim in dims.items())
    return counts.most_common(1)[0][0] if counts else None


def _scanned(graph: Graph, classes: Classes[_Key]) -> frozenset[_Key]:
    """The dims of the arguments that some scan takes one slice of at a time."""
    lengths = _scan_lengths(graph, classes)
    if not lengths:
        return frozenset()
    shapes = {leaf.value: graph.values[leaf.value].shape for leaf in graph.arguments if leaf.value >= 0}
    dims = ((value, dim, extent) for value, shape in shapes.items() for dim, extent in enumerate(shape))
    # A longer dim is cut into pieces, which are scanned: its examples lie in them.
    return frozenset((v, dim) for v, dim, extent in dims if lengths.get(classes.find((v, dim))) == extent)


def _scan_lengths(graph: Graph, classes: Classes[_Key]) -> dict[_Key, int]:
    """Class of a scanned dim -> length of the scan."""
    slices = [op for op in graph.ops if op.primitive == "scan_slice" and op.rule.operands[0][0]]
    scans = ((op.id, op.rule, op.rule.operands[0][0][0]) for op in slices)  # one iteration has no factor
    return {classes.find((op, factor)): rule.sizes[factor] for op, rule, factor in scans}


def _sample_dims(graph: Graph, scanned: frozenset[_Key]) -> dict[int, int]:
    """The first dim of each argument that is examples which no scan goes along, by value id."""
    found: dict[int, int] = {}
    for value in _data_arguments(graph):
        free = [dim for dim in range(len(graph.values[value].shape)) if (value, dim) not in scanned]
        if free:
            found[value] = free[0]
    return found


def _data_arguments(graph: Graph) -> list[int]:
    """Arguments that are examples: arrays with a dim that no result replaces, keys left out."""
    found = []
    for leaf in graph.arguments:
        value = graph.values[leaf.value]
        key = value.dtype.startswith("key<") or (value.dtype == "uint32" and value.shape[-1:] in ((2,), (4,)))
        if leaf.partner is None and value.shape and not key:
            found.append(leaf.value)
    return found


def _argument_labels(graph: Graph, scanned: frozenset[_Key]) -> dict[int, tuple[str, ...]]:
    """The label of every dim of the arguments."""
    sample = _sample_dims(graph, scanned)
    batch, labels = _commonest(graph, sample), {}
    for leaf in graph.arguments:
        shape, own = graph.values[leaf.value].shape, sample.get(leaf.value)
        if own is not None and shape[own] == batch:
            labels[leaf.value] = tuple(SAMPLE if dim == own else ATTRIBUTE for dim in range(len(shape)))
        else:
            labels[leaf.value] = tuple(PARAMETER for _ in shape)
    return labels
