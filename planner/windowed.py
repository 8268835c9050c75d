"""Loops of permutes that stand for one gather or one scattered sum; pure text, no jax.

A TPU hides a large collective behind the matmul beside it: a loop multiplies shard by shard, and passes the
shards (of a gather) or the partial sums (of a scattered sum) round the ring by permutes, in both directions.
XLA names the body of such a loop `windowed_dot_general_body_ag` or `windowed_dot_general_body_rs`. What is
left over stands before or after the loop, under the same op name.

A loop over 4 devices is unrolled: of a scattered sum, each device passes on 3 parts, and first, in both
directions, the zeros that its partial sums begin with. Those zeros are passed once for all such sums of one
shape in one computation, and count with the first of them.

Wire bytes are those of all its permutes: a little more than a ring needs, (g+1)/g of the whole for a
scattered sum in both directions.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

from planner.hlo import Found
from planner.hlo_text import Instruction, Module, callees, parse, runs
from planner.replica_groups import Groups

_BODY = re.compile(r"windowed_dot_general_body_(ag|rs)")
_KINDS = {"ag": "all-gather", "rs": "reduce-scatter"}
_UNROLLED = 4  # devices: the loop over so many is written out


def without_windows(found: Sequence[Found], hlo_text: str) -> tuple[Found, ...]:
    """The collectives with the permutes of each loop as the one collective they stand for."""
    if not any(one.kind == "collective-permute" for one in found):
        return tuple(found)
    module = parse(hlo_text)
    return _without_unrolled(_without_loops(found, module, hlo_text), module)


def _without_unrolled(found: Sequence[Found], module: Module) -> tuple[Found, ...]:
    """The collectives with the permutes of each unrolled loop as the scattered sum they stand for."""
    here = {name: {one.name: one for one in body} for name, body in module.items()}
    alike: dict[Hashable, list[Found]] = defaultdict(list)
    for one in found:
        if one.kind == "collective-permute" and len((ring := rings(one.groups))[0]) == _UNROLLED:
            shape = here[one.computation][one.name].shape.partition("{")[0]
            alike[one.computation, shape, ring].append(one)
    done: set[int] = set()
    whole: list[Found] = []
    for permutes in alike.values():
        sums = _scattered(permutes, here[permutes[0].computation])
        whole.extend(sums)
        done.update(id(one) for one in permutes if sums)
    return (*(one for one in found if id(one) not in done), *whole)


def _scattered(permutes: Sequence[Found], here: Mapping[str, Instruction]) -> list[Found]:
    """The scattered sums that permutes of one shape, on the same rings, stand for; none if they pass on no
    zeros. here: the instructions of their computation."""
    zeros: list[Found] = []
    parts: dict[Hashable, list[Found]] = defaultdict(list)
    for one in permutes:
        operand = here.get(here[one.name].operands[0])
        is_zero = operand is not None and operand.opcode == "broadcast"
        (zeros if is_zero else parts[one.op_name, one.source]).append(one)
    each = _UNROLLED - 1
    if not zeros or any(len(some) % each for some in parts.values()):
        return []
    sums = [some[n : n + each] for some in parts.values() for n in range(0, len(some), each)]
    return [
        _joined(some[0], "reduce-scatter", sum(one.wire_bytes for one in some), len(some))
        for some in ([*zeros, *sums[0]], *sums[1:])
    ]


def _without_loops(found: Sequence[Found], module: Module, hlo_text: str) -> tuple[Found, ...]:
    """The collectives with the permutes of each loop as the one collective they stand for."""
    loops: dict[str, list[Found]] = defaultdict(list)
    for one in found:
        if one.kind == "collective-permute" and _BODY.search(one.computation):
            loops[one.computation].append(one)
    if not loops:
        return tuple(found)
    times = runs(module, hlo_text)
    callers = {callee: name for name, body in module.items() for one in body for callee in callees(one)}
    beside = _beside(loops, found, callers)
    done = {id(one) for several in (*loops.values(), *beside.values()) for one in several}
    whole = [
        _whole(loop, inside, beside[loop], times.get(callers.get(loop, ""))) for loop, inside in loops.items()
    ]
    return (*(one for one in found if id(one) not in done), *whole)


def _beside(
    loops: dict[str, list[Found]], found: Iterable[Found], callers: dict[str, str]
) -> dict[str, list[Found]]:
    """The permutes that stand beside each loop: loops that look the same get as many each."""
    alike: dict[Hashable, list[str]] = defaultdict(list)
    for loop, inside in loops.items():
        alike[_looks(inside[0], callers.get(loop, ""))].append(loop)
    beside: dict[str, list[Found]] = defaultdict(list)
    for key, same in alike.items():
        left = [
            one for one in found if one.kind == "collective-permute" and _looks(one, one.computation) == key
        ]
        for number, one in enumerate(left[: len(left) // len(same) * len(same)]):
            beside[same[number % len(same)]].append(one)
    return beside


def _looks(one: Found, computation: str) -> Hashable:
    return computation, one.op_name, one.source, one.bytes, rings(one.groups)


def _whole(loop: str, inside: Sequence[Found], beside: Sequence[Found], times: float | None) -> Found:
    """times: runs of the computation that holds the loop. A loop of unknown length counts once."""
    sent = sum(one.wire_bytes * (one.times or 1.0) for one in (*inside, *beside)) / (times or 1.0)
    kind = _BODY.search(loop)
    assert kind is not None, "a loop by its name"
    whole = _joined(inside[0], _KINDS[kind.group(1)], sent, len(inside) + len(beside))
    return dataclasses.replace(whole, name=loop, times=times)


def _joined(first: Found, kind: str, sent: float, permutes: int) -> Found:
    """What several permutes stand for, the first of which passes on one part."""
    groups = rings(first.groups)
    size = len(groups[0])
    return dataclasses.replace(
        first,
        kind=kind,
        bytes=first.bytes * size,
        wire_bytes=sent,
        group_size=size,
        groups=groups,
        permutes=permutes,
    )


def rings(pairs: Groups) -> Groups:
    """The devices that pairs (from, to) join, ring by ring.

    >>> rings(((0, 1), (1, 0), (2, 3), (3, 2)))
    ((0, 1), (2, 3))
    """
    follows = {pair[0]: pair[1] for pair in pairs}
    found: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for start in sorted(follows):
        ring: list[int] = []
        device: int | None = start
        while device is not None and device not in seen:
            seen.add(device)
            ring.append(device)
            device = follows.get(device)
        if ring:
            found.append(tuple(sorted(ring)))
    return tuple(found)
