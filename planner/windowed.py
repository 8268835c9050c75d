"""Loops of permutes that stand for one gather or one scattered sum; pure text, no jax.

A TPU hides a large collective behind the matmul beside it: a loop multiplies shard by shard, and passes the
shards (of a gather) or the partial sums (of a scattered sum) round the ring by permutes, in both directions.
XLA names the body of such a loop `windowed_dot_general_body_ag` or `windowed_dot_general_body_rs`. What is
left over stands before or after the loop, under the same op name.

Wire bytes are those of all its permutes: a little more than a ring needs, (g+1)/g of the whole for a
scattered sum in both directions.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from planner.hlo import Found
from planner.hlo_text import callees, parse, runs
from planner.replica_groups import Groups

_BODY = re.compile(r"windowed_dot_general_body_(ag|rs)")
_KINDS = {"ag": "all-gather", "rs": "reduce-scatter"}


def without_windows(found: Sequence[Found], hlo_text: str) -> tuple[Found, ...]:
    """The collectives with the permutes of each loop as the one collective they stand for."""
    loops: dict[str, list[Found]] = defaultdict(list)
    for one in found:
        if one.kind == "collective-permute" and _BODY.search(one.computation):
            loops[one.computation].append(one)
    if not loops:
        return tuple(found)
    module = parse(hlo_text)
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
    first = inside[0]
    groups = rings(first.groups)
    size = len(groups[0])
    sent = sum(one.wire_bytes * (one.times or 1.0) for one in (*inside, *beside)) / (times or 1.0)
    kind = _BODY.search(loop)
    assert kind is not None, "a loop by its name"
    return dataclasses.replace(
        first,
        name=loop,
        kind=_KINDS[kind.group(1)],
        bytes=first.bytes * size,
        wire_bytes=sent,
        group_size=size,
        groups=groups,
        times=times,
        permutes=len(inside) + len(beside),
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
