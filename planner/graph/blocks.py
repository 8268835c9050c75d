"""Blocks: which ops share one strategy, and the factors they share.

A *block* is a maximal connected set of light ops (element-wise, broadcasts, reductions) in one loop body that
lie between the same heavy ops: XLA fuses them, and one assignment of axes to the block's factors fixes all
their specs. "Between the same heavy ops" is the *depth* of an op: the largest number of heavy ops on a path
to it. It keeps a backward block apart from the forward block whose saved values it reads, and one layer's
residual sum apart from the next.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from planner.graph.classes import Classes
from planner.graph.graph import Graph, Op
from planner.graph.labels import NONE, join
from planner.graph.rule import Dims

_MOST_FACTORS = 6


def find_blocks(graph: Graph, when: dict[int, int]) -> list["Block"]:
    """The blocks, and a block for each heavy op, in order of their first op. Ops on scalars only are left
    out: nothing to decide. when: position of each op id; it is moved to where the op will really run."""
    level, depth = _levels(graph, when)
    same: Classes[int] = Classes()
    near: dict[tuple, list[Op]] = defaultdict(list)  # by value, depth and loop: see `_stands_for`
    readers = Counter(value for op in graph.ops for value in op.operands)
    decided = []
    for op in graph.ops:
        arrays = [v for v in op.operands if v is not None and not is_scalar(graph, v)]
        if not arrays and all(is_scalar(graph, v) for v in op.results):
            continue
        decided.append(op)
        if not _mergeable(op):
            continue
        here = level[op.id], op.region
        for value in arrays:
            for other in near[value, *here]:
                if _tied(value, other, op, readers[value], depth.get(value, 0)):
                    same.unite(other.id, op.id)
        for value in dict.fromkeys((*arrays, *op.results)):
            if _stands_for(value, op, near[value, *here]):
                near[value, *here].append(op)
    grouped: dict[int, list[Op]] = defaultdict(list)
    for op in decided:
        grouped[same.find(op.id)].append(op)
    return [part for members in grouped.values() for part in _split_wide(members)]


def _tied(value: int, first: Op, second: Op, readers: int, depth: int) -> bool:
    """Whether a value that one light op makes or reads, and another reads, puts them in one block.

    It must have all their dims: a bias that two blocks add says nothing about their other dims. A maker whose
    only reader has more dims (a broadcast) goes with its reader. Readers of a value of depth 0 share a
    parameter, no more.
    """
    if value in first.results:
        return _spans(second, value) or readers == 1
    return depth > 0 and _spans(first, value) and _spans(second, value)


def _stands_for(value: int, op: Op, known: Sequence[Op]) -> bool:
    """Whether an op has to be asked what a value ties to it, beside those known: its maker has, and one of
    the readers that have all its dims, which are in one block."""
    return value in op.results or (all(value in other.results for other in known) and _spans(op, value))


def _spans(op: Op, value: int) -> bool:
    """Whether a value has all the dims that an op walks."""
    values, rules = (*op.operands, *op.results), op.rule.operands + op.rule.results
    dims = next(d for v, d in zip(values, rules, strict=True) if v == value)
    have = {f for dim in dims for f in dim}
    return all(f in have or extent == 1 for f, extent in op.rule.sizes.items())


def _levels(graph: Graph, when: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """The depth of each op, and of each value; `when` is moved to where the op will really run.

    A light op that only one deeper block reads belongs to that block (a moment times its decay; a derivative
    that only the backward pass needs): XLA computes it there, so its operands are held until then.
    """
    depth: dict[int, int] = {}
    level: dict[int, int] = {}
    readers: dict[int, list[Op]] = defaultdict(list)
    for op in graph.ops:
        arrays = [v for v in op.operands if v is not None and not is_scalar(graph, v)]
        level[op.id] = max((depth.get(v, 0) for v in arrays), default=0)
        depth.update(dict.fromkeys(op.results, level[op.id] if op.light else level[op.id] + 1))
        for value in arrays:
            readers[value].append(op)
    returned = {leaf.value for leaf in graph.results}
    for op in reversed(graph.ops):
        after = [reader for value in op.results for reader in readers[value]]
        if not _mergeable(op) or not after or returned.intersection(op.results):
            continue
        levels = {level[reader.id] for reader in after}
        if len(levels) == 1 and all(_mergeable(r) and r.region == op.region for r in after):
            (level[op.id],) = levels
            when[op.id] = min(when[reader.id] for reader in after)
    return level, depth


def _mergeable(op: Op) -> bool:
    return op.light and op.primitive not in ("loop_carry", "cond_join")


def is_scalar(graph: Graph, value: int) -> bool:
    """Whether a value has one element: there is nothing to split."""
    return all(extent == 1 for extent in graph.values[value].shape)


def _split_wide(members: list[Op]) -> "list[Block]":
    """A block with too many factors would have too many strategies: fall back to its single ops."""
    factors = Block(members)
    if len(members) > 1 and len(factors.splittable) > _MOST_FACTORS:
        return [Block([op]) for op in members]
    return [factors]


class Block:
    """Ops that share one strategy. Its factors are classes of (op, factor) that walk the same dim of a shared
    value, named f0, f1, ... in order of appearance, so that equal blocks have equal names."""

    def __init__(self, members: Sequence[Op]) -> None:
        self.members = members
        self.same: Classes[tuple[int, str]] = Classes()
        seen: dict[int, tuple[int, Dims]] = {}
        for op in members:
            values, rules = (*op.operands, *op.results), op.rule.operands + op.rule.results
            for value, dims in zip(values, rules, strict=True):
                if value is not None and dims:
                    self._unite(*seen.setdefault(value, (op.id, dims)), op.id, dims)
        roots = dict.fromkeys(self.same.find((op.id, f)) for op in members for f in op.rule.factors)
        self.name = {root: f"f{i}" for i, root in enumerate(roots)}

    def _unite(self, first: int, dims0: Dims, second: int, dims1: Dims) -> None:
        for a, b in zip(dims0, dims1, strict=True):
            if len(a) == 1 and len(b) == 1:
                self.same.unite((first, a[0]), (second, b[0]))

    def factor(self, op: int, factor: str) -> str:
        """What the block calls a factor of one of its ops."""
        return self.name[self.same.find((op, factor))]

    def named(self, op: int, dims: Dims) -> Dims:
        """The dims of one op in the names of the group."""
        return tuple(tuple(self.factor(op, f) for f in dim) for dim in dims)

    def sizes(self) -> dict[str, int]:
        """The extent of each factor."""
        return {self.factor(op.id, f): op.rule.sizes[f] for op in self.members for f in op.rule.factors}

    def labels(self, of_op: Mapping[tuple[int, str], str]) -> dict[str, str]:
        """The strongest label of each factor among the ops."""
        found: dict[str, str] = {}
        for op in self.members:
            for factor in op.rule.factors:
                name = self.factor(op.id, factor)
                found[name] = join(found.get(name, NONE), of_op[op.id, factor])
        return found

    @functools.cached_property
    def splittable(self) -> tuple[str, ...]:
        """Factors that every op may split, and that no value has on two dims."""
        blocked: set[str] = set()
        for op in self.members:
            free = set(op.rule.splittable)
            blocked.update(self.factor(op.id, f) for f in op.rule.factors if f not in free)
            for dims in op.rule.operands + op.rule.results:
                names = [self.factor(op.id, dim[0]) for dim in dims if dim]
                if len(set(names)) < len(names):
                    blocked.update(f for f in names if names.count(f) > 1)
        return tuple(f for f, extent in self.sizes().items() if f not in blocked and extent > 1)
