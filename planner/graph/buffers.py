"""Buffers: which values of a step are arrays in memory, and from when to when, where the compiler fuses.

A light op that reads whole arrays and writes one of them anew (element-wise, broadcast, mask, transpose) is
done inside the ops that read it, as often as they are, so its result needs no memory; what it is made from is
held instead, until the last of them has run. What does become an array:

    a heavy op's or a reduction's result, after the light ops that alone read it, one by one: its *tail*
    what a heavy op reads that does not make its operands on the way in, as a matmul does (a gather, a sort, a
    loop), what goes from one loop body to another, and what is returned
    what would have to be made from two arrays of its size, unless those are held as long anyway, and only one
    op reads it
    what a convolution reads of an argument that does not lie in memory as convolutions need it (images)

So the forward pass of a GELU saves the matmul's result only, LayerNorm the residual stream and two numbers a
row, a loss its logits; a gradient waits for its update in the dtype that the matmul wrote. This is what XLA's
TPU compiler does; the one for CPUs makes nothing again.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

from planner.graph.graph import Graph, Op, Path
from planner.graph.tiles import CONVOLUTION, dims_in_tiles

MATMULS = frozenset({"dot_general", CONVOLUTION, "ragged_dot", "ragged_dot_general"})
_VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "transpose"})
_BORDERS = frozenset({"loop_carry", "cond_join", "scan_slice", "scan_stack"})
_RANDOM = frozenset({"random_bits", "threefry2x32", "rng_uniform"})

Interval = tuple[int, int]  # positions in the program: when it is made, and when it is last read
_Sources = tuple[frozenset[int], frozenset[int]]  # arrays of a value's own size, and smaller ones
_NOTHING: _Sources = (frozenset(), frozenset())
# Arrays that one fusion reads and writes: MaxOperandsAndOutputsPerFusion in xla/service/gpu/gpu_fusible.h.
# What it is on TPUs is not known. A longer chain is written on the way, which also keeps the walk linear.
_MOST_SOURCES = 96


def buffers(graph: Graph) -> dict[int, Interval]:
    """The values made in a step that are arrays in memory, each with its interval; not the step's arguments.

    Linear in the ops. The order is the program's; an argument that is overwritten is its owner's business.
    """
    return _Buffers(graph).found()


def quotients(graph: Graph) -> dict[int, Interval]:
    """The quotients of arrays that are rounded to bfloat16 and read by matmuls beside them, such as the
    weights of an attention: where two cores share a matmul, XLA writes them and does not make them inside it
    (libtpu 0.0.42, v5p)."""
    makers = {value: op for op in graph.ops for value in op.results}
    position = {op.id: i for i, op in enumerate(graph.ops)}
    origin: dict[int, int] = {}  # a value -> the quotient that it is a view of
    found: dict[int, Interval] = {}
    for op in graph.ops:
        first = next((value for value in op.operands if value is not None), None)
        made = makers.get(first) if first is not None else None
        if op.primitive == "convert_element_type" and made is not None and _divides(made, graph):
            if graph.values[op.results[0]].dtype == "bfloat16":
                origin[op.results[0]] = op.results[0]
        elif op.primitive in _VIEWS and first in origin:
            origin[op.results[0]] = origin[first]
        elif op.primitive in MATMULS:
            for value in {origin[v] for v in op.operands if v in origin}:
                if makers[value].region == op.region:
                    found[value] = position[makers[value].id], position[op.id]
    return found


def _divides(op: Op, graph: Graph) -> bool:
    """Whether an op divides an array by one that has more than a number."""
    divisor = op.operands[1] if op.primitive == "div" else None
    return divisor is not None and math.prod(graph.values[divisor].shape) > 1


class _Buffers:
    """One look at a graph: `written` values are arrays, `sources` what every value is made from where it is
    read, `until` how long an array is held."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.elements = [math.prod(value.shape) for value in graph.values]
        self.readers: dict[int, list[Op]] = defaultdict(list)
        self.maker: dict[int, Op] = {}
        self.position: dict[int, int] = {}
        self.loop: dict[Path, Interval] = {}
        for i, op in enumerate(graph.ops):
            self.position[op.id] = i
            self.maker.update(dict.fromkeys(op.results, op))
            for value in dict.fromkeys(op.operands):
                if value is not None:
                    self.readers[value].append(op)
            for depth in range(1, len(op.region) + 1):
                self.loop[op.region[:depth]] = (self.loop.get(op.region[:depth], (i, i))[0], i)
        self.tiled = dims_in_tiles(graph)
        self.returned = {leaf.value for leaf in graph.results if leaf.value in self.maker}
        self.apart = self.returned | {value for op in graph.ops for value in self._read_as_arrays(op)}
        self.ready: dict[
            int, int
        ] = {}  # the position of the last op that runs by itself before a value is there
        self.tail: dict[int, Op] = {}  # what comes out of a heavy op's tail, and all before it: that op
        self.written: set[int] = set(self.apart)
        self.twofold: set[int] = set()
        self.sources: dict[int, _Sources] = {}
        self.until: dict[int, int] = dict.fromkeys(self.returned, len(graph.ops))

    def found(self) -> dict[int, Interval]:
        for op in self.graph.ops:
            before = max((self.ready.get(v, -1) for v in op.operands if v is not None), default=-1)
            self.ready.update(
                dict.fromkeys(op.results, before if self._is_fused(op) else self.position[op.id])
            )
        for op in self.graph.ops:
            if not self._is_fused(op):
                for value in op.results:
                    self._follow_tail(op, value)
        known: dict[tuple[int | None, str], int] = {}
        for op in self.graph.ops:
            self._trace(op)
            if op.primitive == "convert_element_type":
                self._unite(op, known)
        for op in reversed(self.graph.ops):
            self._hold_for(op)
        return {value: (self._born(value), last) for value, last in sorted(self.until.items())}

    def _is_fused(self, op: Op) -> bool:
        """Whether an op runs inside those that read it."""
        plain = op.light and not op.rule.reduced and op.primitive not in _BORDERS | _RANDOM
        return plain or op.primitive in _VIEWS | {"scan_slice"}

    def _read_as_arrays(self, op: Op) -> Iterator[int]:
        """The operands that an op does not make on the way in: all of a heavy op's, and those from outside
        its loop. Behind a view it is the viewed value."""
        heavy = op.primitive in _BORDERS or not (op.light or op.primitive in MATMULS | _VIEWS)
        heavy = heavy and op.primitive != "scan_stack"  # what it reads is written to its place at once
        for value in op.operands:
            if value in self.maker:
                if heavy or self.maker[value].region != op.region:
                    yield self._viewed(value)
                elif op.primitive == CONVOLUTION and self._lies_otherwise(value):
                    yield value

    def _lies_otherwise(self, value: int) -> bool:
        """Whether what a convolution reads is made of one argument, element by element, whose last two dims,
        which lie in its tiles, are not those that the convolution needs there."""
        rank, pair = len(self.graph.values[value].shape), self.tiled.get(value)
        while value in self.maker and self._is_fused(self.maker[value]):
            alike = [v for v in self.maker[value].operands if v is not None and self.elements[v] > 1]
            if [self.elements[v] for v in alike] != [self.elements[value]]:
                return False
            (value,) = alike
        return value not in self.maker and pair is not None and pair != (rank - 2, rank - 1)

    def _viewed(self, value: int) -> int:
        while value in self.maker and self.maker[value].primitive in _VIEWS:
            (value,) = (v for v in self.maker[value].operands if v is not None)
        return value

    def _follow_tail(self, heavy: Op, value: int) -> None:
        """A heavy op's result goes through the light ops that alone read it before it is written; a mere
        widening at the end is left to those who read it."""
        chain, end = [value], 0
        while self._goes_on(heavy, value):
            (reader,) = self.readers[value]
            wider = self._itemsize(reader.results[0]) > self._itemsize(value)
            (value,) = reader.results
            chain.append(value)
            if not (wider and reader.primitive == "convert_element_type"):
                end = len(chain) - 1
        self.written.add(chain[end])
        self.tail.update(dict.fromkeys(chain[: end + 1], heavy))

    def _goes_on(self, heavy: Op, value: int) -> bool:
        if heavy.primitive in _BORDERS or value in self.apart or len(self.readers[value]) != 1:
            return False
        (reader,) = self.readers[value]
        if [self.elements[v] for v in reader.results] != [self.elements[value]]:
            return False
        there = self.ready[reader.results[0]] == self.position[heavy.id]  # all else it reads is
        return there and self._is_fused(reader) and reader.region == heavy.region

    def _itemsize(self, value: int) -> int:
        return self.graph.values[value].itemsize

    def _trace(self, op: Op) -> None:
        for value in op.results:
            whole, smaller = set[int](), set[int]()
            for operand in op.operands:
                mine, less = self.sources.get(operand, _NOTHING) if operand is not None else _NOTHING
                large = operand is not None and self.elements[operand] >= self.elements[value]
                large = large and op.primitive != "scan_slice"  # held whole until the loop ends, in any case
                (whole if large else smaller).update(mine)
                smaller.update(less)
            if self.elements[value] == 1:
                continue  # a scalar is nothing
            much = sum(self.elements[v] for v in whole) >= 2 * self.elements[value]
            alone = all(map(self._is_fused, self.readers[value]))  # a step on the way inside a fusion
            if much and not alone and value not in self.written and value not in self.tail:
                self.written.add(value)
                self.twofold.add(value)
            if len(whole) + len(smaller) >= _MOST_SOURCES and value not in self.tail:
                self.written.add(value)
            if value in self.written:
                whole, smaller = {value}, set()
            elif value in self.tail:
                whole, smaller = set(), set()  # never there: the end of the tail is
            self.sources[value] = frozenset(whole), frozenset(smaller - whole)

    def _unite(self, op: Op, known: dict[tuple[int | None, str], int]) -> None:
        """A value that is rounded twice in the same way is rounded once, if that is written at all."""
        (value,) = op.results
        first = known.setdefault((op.operands[0], self.graph.values[value].dtype), value)
        alike = first in self.sources and self.maker[first].region == op.region
        if alike and first in self.written and value not in self.returned:
            self.sources[value] = self.sources[first]

    def _hold_for(self, op: Op) -> None:
        """Hold what an op reads while it runs, if it runs by itself or writes an array."""
        at = self.position[op.id]
        if self._is_fused(op):
            tails = [self.tail[value] for value in op.results if value in self.tail]
            writes = [v for v in op.results if v in self.written and (v in self.until or v in self.apart)]
            if tails:
                at = self.position[tails[0].id]
            elif not writes or self._makes_again(op, writes):
                return
        for k, value in enumerate(op.operands):
            if value is not None:
                for source in self._all_sources(value):
                    last = self._needed_until(op, k, source, at)
                    self.until[source] = max(self.until.get(source, -1), last)
        for value in op.results:
            if value in self.written:
                self.until.setdefault(value, at)
        if op.primitive == "loop_carry":
            self._share(op)

    def _all_sources(self, value: int) -> frozenset[int]:
        whole, smaller = self.sources.get(value, _NOTHING)
        return whole | smaller

    def _makes_again(self, op: Op, writes: list[int]) -> bool:
        """Whether what a light op is made from is held as long as its result would be, which is read once:
        it is made there."""
        if not self.twofold.issuperset(writes) or sum(map(self._count_readers, writes)) > 1:
            return False
        last = max(self.until[value] for value in writes)
        sources = frozenset().union(*(self._all_sources(v) for v in op.operands if v is not None))
        if any(self.until.get(source, -1) < last for source in sources):
            return False
        for value in writes:
            del self.until[value]
        return True

    def _count_readers(self, value: int) -> int:
        """How many ops that run by themselves, or write an array, read a value, as it is or on the way in."""
        found, seen, ahead = set[int](), {value}, [value]
        while ahead:
            for op in self.readers[ahead.pop()]:
                if not self._is_fused(op) or any(result in self.until for result in op.results):
                    found.add(op.id)
                else:
                    ahead += [result for result in op.results if result not in seen]
                    seen.update(op.results)
        return len(found)

    def _share(self, op: Op) -> None:
        """A loop's carry has one array, from before the first iteration until the result is read last."""
        inside, final = op.results
        end = self.loop[op.region][1]
        self.until[final] = max(end, self.until.get(final, -1))
        following = op.operands[1]
        if following in self.until:  # apart from the carry only while that is still read
            self.until[following] = max(self.until[following], self.until.get(inside, -1))
        self.until.pop(inside, None)

    def _needed_until(self, op: Op, operand: int, source: int, at: int) -> int:
        """What is from outside of a loop is needed until it ends; a carry's first value is written over, and
        the next one takes its place."""
        if op.primitive == "loop_carry":
            return at - 1 if operand == 0 else self._born(source)
        if op.primitive == "scan_stack":
            at = self.position[self.maker[op.operands[0] or source].id]
        home = self.maker[source].region
        for depth in range(1, len(op.region) + 1):
            if op.region[:depth] != home[:depth]:
                return self.loop[op.region[:depth]][1]
        return at

    def _born(self, value: int) -> int:
        """What a loop stacks has its array from the start of the loop; a tail is written by its heavy op."""
        op = self.tail.get(value, self.maker[value])
        return self.loop[op.region][0] if op.primitive == "scan_stack" else self.position[op.id]
