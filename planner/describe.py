"""A decided plan in the field's words: "fsdp over x (16), Megatron column->row over y (4)"."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from planner.graph.labels import ATTRIBUTE, PARAMETER, SAMPLE
from planner.planning import Decided
from planner.sharding.named import Sort
from planner.sharding.spec import axes_of

_WORTH_NAMING = 0.05  # of the step's FLOPs: below it an axis' use is a detail


def describe(decided: Decided, sorts: Mapping[int, Sort]) -> str:
    """One line: what each axis does for most of the work; axes that do the same are named together."""
    axes_of_use: dict[str, list[str]] = {}
    for axis in decided.sizes:
        axes_of_use.setdefault(_axis(decided, sorts, axis), []).append(axis)
    parts = [f"{use} over {_named(axes, decided.sizes)}" for use, axes in axes_of_use.items()]
    if _vocabulary_split(decided):
        parts.append("vocabulary split")
    return ", ".join(parts)


def _axis(decided: Decided, sorts: Mapping[int, Sort], axis: str) -> str:
    work, sequence = _work(decided, axis), False
    for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True):
        if sorts[node.id] == "activation":
            labels = dict(node.labels)
            sequence |= any(axis in axes and labels[f] == ATTRIBUTE for f, axes in strategy.split.items())
    total = sum(work.values()) or 1.0
    names = []
    if work["sample"] > _WORTH_NAMING * total:
        names.append(_data_name(decided, sorts, axis))
    column, row = work["column"] > _WORTH_NAMING * total, work["row"] > _WORTH_NAMING * total
    if column or row:
        kind = "column->row" if column and row else "column" if column else "row"
        names.append(f"Megatron {kind}{' with sequence parallel' if sequence else ''}")
    elif work["attribute"] > _WORTH_NAMING * total:
        names.append("sequence or spatial split")
    return " and ".join(names) or "replicated work"


def _named(axes: list[str], sizes: Mapping[str, int]) -> str:
    """'x (4)', or 'x and y (4x2)'."""
    return f"{' and '.join(axes)} ({'x'.join(str(sizes[axis]) for axis in axes)})"


def _work(decided: Decided, axis: str) -> Mapping[str, float]:
    """FLOPs by what the axis splits in each heavy op."""
    work: dict[str, float] = defaultdict(float)
    for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True):
        if node.kind != "op":
            continue
        labels = dict(node.labels)
        factor = next((f for f, axes in strategy.split.items() if axis in axes), None)
        flops = node.flops * node.repeat
        if factor is None:
            work["nothing"] += flops
        elif labels[factor] in (SAMPLE, ATTRIBUTE):
            work["sample" if labels[factor] == SAMPLE else "attribute"] += flops
        else:
            work["row" if axis in strategy.finish else "column"] += flops
    return work


def _data_name(decided: Decided, sorts: Mapping[int, Sort], axis: str) -> str:
    """data parallel, ZeRO-1 or fsdp: by the bytes of state that the axis splits."""
    split: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True):
        sort = sorts[node.id]
        if sort in ("parameter", "moment"):
            count = decided.graph.values[node.outputs[0].value].bytes
            (split if axis in axes_of(tuple(strategy.split.values())) else whole)[sort] += count
    shares = {s: split[s] / max(1, split[s] + whole[s]) for s in ("parameter", "moment")}
    if shares["parameter"] > 1 - _WORTH_NAMING:
        return "fsdp"
    if shares["parameter"] > _WORTH_NAMING:
        return f"fsdp of {100 * shares['parameter']:.0f}% of the parameters"
    return "ZeRO-1" if shares["moment"] > _WORTH_NAMING else "data parallel"


def _vocabulary_split(decided: Decided) -> bool:
    """Whether an embedding table is looked up where its rows are split."""
    primitive = {op.id: op.primitive for op in decided.graph.ops}
    for node, strategy in zip(decided.coarse.nodes, decided.strategy, strict=True):
        if node.kind == "op" and primitive[node.ops[0]] == "gather" and node.sums:
            labels = dict(node.labels)
            if any(labels[f] == PARAMETER and strategy.axes(f) for f in node.sums[0].reduced):
                return True
    return False
