"""Tasks: the step as a tree of segments, the parts of it that run as one program.

The step is a segment, and so is the body of every loop, which is one item of the segment around it. An *item*
of a segment is a node or a loop inside; items have numbers in an order in which they can run, that of the
program where it leaves a choice. A *lane* brings a value from the item that makes it to the item that reads
it:

    item  --done-->  lane (moves)  --arrived-->  item

What the moves of a lane and the work and sums of an item are, and how long they take, depends on the choice
(`planner.simulate.durations`); items and lanes do not. A lane opens when its value is made, and not before
its *gate* is passed: the matmul, or loop, that stands `ahead` such items before the reader, nor does the
reader run before. What a loop hands on to its next iteration, and what replaces an argument, has no reader;
the segment ends when it is there.
"""

import dataclasses
import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

from planner.cost.roofline import MATMULS
from planner.graph.coarsen import Coarse, Link
from planner.graph.graph import Graph, Path

START = END = -1  # of a segment: where a lane has no maker, or no reader


@dataclasses.dataclass(frozen=True)
class Lane:
    """maker, reader: items, or START and END. gate: the item after whose work it may open, or START. link: of
    the Coarse, or -1 where nothing is ever moved. times: how often its moves run in one run of the
    segment."""

    maker: int
    reader: int
    gate: int
    link: int
    times: float


@dataclasses.dataclass(frozen=True)
class Segment:
    """nodes: of each item, its node, or -1 for a loop, which is then in `loops`. repeat: runs in a step;
    trips: runs in one run of the segment around it. after: of each item, (lane, reader) of what it makes;
    opens: of each item, (item, lanes into it) of those that it is the gate of. unmade: the lanes without a
    maker.

    waits: of each lane, what it waits for if it has moves: its maker and its gate. needs: of each item, what
    it waits for if no lane has moves: its makers and its gate.
    """

    nodes: tuple[int, ...]
    loops: dict[int, "Segment"]
    repeat: float
    trips: float
    lanes: tuple[Lane, ...]
    gates: tuple[int, ...]
    after: tuple[tuple[tuple[int, int], ...], ...]
    opens: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    unmade: tuple[int, ...]
    waits: tuple[int, ...]
    needs: tuple[int, ...]


def segments(graph: Graph, coarse: Coarse, ahead: int) -> Segment:
    """The tree of a coarsened step. ahead: see the module."""
    return _Tree(graph, coarse).segment((), ahead)


_Loop = tuple[Path, ...]  # the loops around something, outermost first
_Item = int | _Loop  # a node, or a loop
_Ends = tuple[_Item | None, _Item | None, int, float]  # maker, reader, link, runs in a step


class _Tree:
    def __init__(self, graph: Graph, coarse: Coarse) -> None:
        self.graph, self.coarse = graph, coarse
        self.ops = {op.id: op for op in graph.ops}
        self.repeat: dict[_Loop, float] = {(): 1.0}
        loop_of = self._loops()
        self.loop = [loop_of[self.ops[node.ops[0]].region] if node.ops else () for node in coarse.nodes]
        for link in coarse.links:
            if coarse.nodes[link.maker].kind == "copy":
                self.loop[link.maker] = self._level(self.loop[link.user], coarse.nodes[link.maker].repeat)
        self.members: dict[_Loop, dict[_Item, int]] = defaultdict(dict)  # item -> position
        for node, loop in zip(coarse.nodes, self.loop, strict=True):
            self._add(loop, node.id, node.position)
        self.lanes: dict[_Loop, list[_Ends]] = defaultdict(list)
        for number, link in enumerate(coarse.links):
            self._lane(number, link)

    def _loops(self) -> dict[Path, _Loop]:
        """The loops around each region; a branch is a part of the loop around it."""
        repeat = {op.region: op.repeat for op in self.graph.ops} | {(): 1.0}
        found: dict[Path, _Loop] = {}
        for region in sorted(repeat, key=len):
            around = max((r for r in found if r == region[: len(r)]), key=len, default=())
            loop = found.get(around, ())
            found[region] = (*loop, region) if repeat[region] > self.repeat[loop] else loop
            self.repeat[found[region]] = (
                repeat[region] if repeat[region] > self.repeat[loop] else self.repeat[loop]
            )
        return found

    def _level(self, loop: _Loop, repeat: float) -> _Loop:
        """The innermost of some loops that runs no more often."""
        return next(loop[:d] for d in range(len(loop), -1, -1) if self.repeat[loop[:d]] <= repeat or not d)

    def _add(self, loop: _Loop, item: _Item, position: int) -> None:
        members = self.members[loop]
        members[item] = min(members.get(item, position), position)
        if loop:
            self._add(loop[:-1], loop, position)

    def _lane(self, number: int, link: Link) -> None:
        """A link is a lane where both its ends are together, and its moves run there, or in the loop further
        in that repeats them."""
        made, used = self.loop[link.maker], self.loop[link.user]
        user, port = self.coarse.nodes[link.user], self.coarse.nodes[link.user].inputs[link.into]
        both = sum(1 for _ in self._common(made, used))
        moved = self._level(used, port.repeat)
        moved = moved if len(moved) > both else used[:both]
        maker = link.maker if len(made) == both else made[: both + 1]
        carried = both == len(used) and user.ops and self.ops[user.ops[0]].primitive == "loop_carry"
        if user.kind == "leaf" or carried:
            self.lanes[moved].append((maker, None, number, port.repeat))
            return
        reader = link.user if len(used) == both else used[: both + 1]
        if len(moved) > both:
            self.lanes[used[:both]].append((maker, reader, -1, 0.0))
            maker, both = None, len(moved)
            reader = link.user if len(used) == both else used[: both + 1]
        if maker != reader:
            self.lanes[moved].append((maker, reader, number, port.repeat))

    def _common(self, some: _Loop, other: _Loop) -> Iterable[Path]:
        for mine, theirs in zip(some, other, strict=False):
            if mine != theirs:
                return
            yield mine

    def segment(self, loop: _Loop, ahead: int) -> Segment:
        """A loop's body, or () for the step."""
        found = self.lanes[loop]
        order = _in_order(
            self.members[loop], [(m, r) for m, r, *_ in found if m is not None and r is not None]
        )
        number = {item: i for i, item in enumerate(order)}
        gates, heavy = [], []
        for i, item in enumerate(order):
            gates.append(heavy[-ahead - 1] if len(heavy) > ahead else START)
            if self._is_heavy(item):
                heavy.append(i)
        repeat = self.repeat[loop]
        lanes = [
            Lane(
                START if maker is None or self._is_there(maker) else number[maker],
                END if reader is None else number[reader],
                START if reader is None else gates[number[reader]],
                link,
                times / repeat,
            )
            for maker, reader, link, times in self._forward(found, number)
        ]
        after: list[list[tuple[int, int]]] = [[] for _ in order]
        into: list[list[int]] = [[] for _ in order]
        needs = [int(gate != START) for gate in gates]
        for i, lane in enumerate(lanes):
            if lane.maker != START:
                after[lane.maker].append((i, lane.reader))
            if lane.reader != END:
                into[lane.reader].append(i)
                needs[lane.reader] += lane.maker != START
        opens: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in order]
        for item, gate in enumerate(gates):
            if gate != START:
                opens[gate].append((item, tuple(into[item])))
        return Segment(
            nodes=tuple(item if isinstance(item, int) else -1 for item in order),
            loops={number[i]: self.segment(i, ahead) for i in order if not isinstance(i, int)},
            repeat=repeat,
            trips=repeat / self.repeat[loop[:-1]],
            lanes=tuple(lanes),
            gates=tuple(gates),
            after=tuple(map(tuple, after)),
            opens=tuple(map(tuple, opens)),
            unmade=tuple(i for i, lane in enumerate(lanes) if lane.maker == START),
            waits=tuple((lane.maker != START) + (lane.gate != START) for lane in lanes),
            needs=tuple(needs),
        )

    def _forward(self, lanes: Iterable[_Ends], number: dict[_Item, int]) -> Iterable[_Ends]:
        """The lanes, without the readers that run before the makers: only in a ring, which has to begin."""
        for maker, reader, link, times in lanes:
            back = maker is not None and reader is not None and number[maker] >= number[reader]
            yield maker, None if back else reader, link, times

    def _is_heavy(self, item: _Item) -> bool:
        if not isinstance(item, int):
            return True
        node = self.coarse.nodes[item]
        return node.kind == "op" and self.ops[node.ops[0]].primitive in MATMULS

    def _is_there(self, item: _Item) -> bool:
        """Whether it is there from the start: parameters and constants are, a batch is written first."""
        node = self.coarse.nodes[item] if isinstance(item, int) else None
        return node is not None and (node.kind == "const" or (node.kind == "leaf" and bool(node.inputs)))


def _in_order(members: dict[_Item, int], before: Sequence[tuple[_Item, _Item]]) -> list[_Item]:
    """The items, makers before readers, else by position. Should some wait for each other in a ring, the one
    that comes first in the program begins."""
    places = {item: (position, i) for i, (item, position) in enumerate(members.items())}
    after: dict[_Item, list[_Item]] = defaultdict(list)
    waits = dict.fromkeys(members, 0)
    for maker, reader in before:
        after[maker].append(reader)
        waits[reader] += 1
    ready = [(places[item], item) for item, count in waits.items() if not count]
    heapq.heapify(ready)
    left = sorted(((place, item) for item, place in places.items()), reverse=True)
    order: dict[_Item, None] = {}
    while len(order) < len(members):
        while not ready:
            place, item = left.pop()
            if item not in order:
                ready.append((place, item))
        _, item = heapq.heappop(ready)
        if item in order:
            continue
        order[item] = None
        for reader in after[item]:
            waits[reader] -= 1
            if not waits[reader] and reader not in order:
                heapq.heappush(ready, (places[reader], reader))
    return list(order)
