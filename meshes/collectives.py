"""What a collective takes: seconds on given wires, and bytes each device sends.

`bytes` is always the whole array that one group of devices holds between them: gathered (all_gather), before it is
scattered (reduce_scatter), the array each device holds (all_reduce), all devices' parts together (all_to_all). For
permute it is what each device sends.

Every time is the least of a few straight lines `latency + bytes * slope` (`lines`): one on TPU and CPU, one per
algorithm and protocol on GPU. Times are monotone in bytes. With V = bytes, n = group, W = one-way bytes/s of a link,
a = seconds per hop, and a fixed cost of starting (scaling book, chapter on sharding; all-reduce is the two others in turn):

    all_gather, reduce_scatter   ring: V (n-1)/n / 2W + a n/2        line: V (n-1)/n / W + a (n-1)
                                 torus axes run a ring order each, so their rates add and so do their hops
    all_to_all                   the tightest cut: V (n/2)^2/n^2 cross it each way, over 2W on a ring and W on a line
    permute                      to the neighbour: bytes / W + a; a line's ends are n-1 hops apart

Groups that span levels (dies, torus, slices) work level by level: an outer level carries 1/n of what the inner one of
n devices carries.
"""

import functools
import math
from typing import Literal, get_args

from meshes.machine import Machine
from meshes.mesh import LogicalMesh
from meshes.nccl import gpu_lines
from meshes.topology import Wire

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
Line = tuple[float, float]  # seconds, seconds per byte

KINDS: tuple[str, ...] = get_args(Kind)

# Of a gather of 32 kB shards over 4 chips of TPU v5e that takes 8 us (scaling book), 3 us are hops and 2 us bytes.
TPU_START_S = 3e-6

_LEVELS = (("memory",), ("die",), ("ici",), ("dcn",))  # innermost first


def seconds(machine: Machine, mesh: LogicalMesh, kind: str, axes: tuple[str, ...], bytes: float) -> float:
    """Seconds of one collective over `axes` of the mesh, all groups at once. 0 for one device or no bytes."""
    if bytes <= 0:
        return 0.0
    return min([start + bytes * slope for start, slope in lines(machine, mesh, kind, axes)])


def wire_bytes(kind: str, group: int, bytes: float) -> float:
    """Bytes each device of the group sends, by the ring algorithm.

    >>> wire_bytes("all_reduce", 4, 100.0)
    150.0
    """
    part = bytes * (group - 1) / group
    return {
        "all_gather": part,
        "reduce_scatter": part,
        "all_reduce": 2 * part,
        "all_to_all": part / group,
        "permute": bytes if group > 1 else 0.0,
    }[kind]


@functools.lru_cache(maxsize=4096)
def lines(machine: Machine, mesh: LogicalMesh, kind: str, axes: tuple[str, ...]) -> tuple[Line, ...]:
    """The straight lines whose minimum is the time: (seconds, seconds per byte)."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a collective; the kinds are {', '.join(KINDS)}.")
    wires = tuple(wire for axis in axes for wire in mesh.wires[mesh.axes.index(axis)])
    if not wires:
        return ((0.0, 0.0),)
    if machine.chip.kind == "gpu":
        return gpu_lines(machine.chip, kind, wires)
    start = TPU_START_S if machine.chip.kind == "tpu" else 0.0
    found = [tuple(_joined(wires, kinds)) for kinds in _LEVELS]
    levels = [level for level in found if level]
    if kind == "all_to_all":
        latency, slope = _exchange(levels)
    elif kind == "permute":
        latency, slope = _permute(levels)
    else:
        latency, slope = _gather(levels)
        turns = 2 if kind == "all_reduce" else 1
        latency, slope = latency * turns, slope * turns
    return ((start + latency, slope),)


def _joined(wires: tuple[Wire, ...], kinds: tuple[str, ...]) -> list[Wire]:
    """The wires of these kinds, parts of one physical wire that touch joined to one."""
    found: list[Wire] = []
    for wire in sorted((w for w in wires if w.kind in kinds), key=lambda w: (w.name, w.stride)):
        last = found[-1] if found else None
        if last is not None and last.name == wire.name and wire.stride == last.stride * last.size:
            found[-1] = _join(last, wire)
        else:
            found.append(wire)
    return found


def _join(inner: Wire, outer: Wire) -> Wire:
    """One row of all devices of two rows on the same physical wire; the outer one's links are the inner one's again."""
    return Wire(
        inner.name, inner.kind, inner.size * outer.size, inner.bandwidth, inner.latency, outer.wraps, inner.stride
    )


def _gather(levels: list[tuple[Wire, ...]]) -> Line:
    latency, slope, inner = 0.0, 0.0, 1
    for level in levels:
        size = math.prod(wire.size for wire in level)
        latency += sum(wire.latency * _hops(wire) for wire in level)
        slope += (size - 1) / size / sum(_rate(wire) for wire in level) / inner
        inner *= size
    return latency, slope


def _exchange(levels: list[tuple[Wire, ...]]) -> Line:
    latency, slope = 0.0, 0.0
    group = math.prod(wire.size for level in levels for wire in level)
    for level in levels:
        size = math.prod(wire.size for wire in level)
        latency += sum(wire.latency * _hops(wire) for wire in level)
        slope += max(_cut(wire, size) for wire in level) * size / group
    return latency, slope


def _cut(wire: Wire, size: int) -> float:
    """Seconds per byte of the level's array over the middle of this wire; `size` devices in the level."""
    if wire.kind in ("dcn", "memory"):
        return (size - 1) / size**2 / wire.bandwidth
    crossing = (wire.size // 2) * ((wire.size + 1) // 2) / wire.size**2
    links = size // wire.size * (2 if wire.wraps else 1)
    return crossing / (links * wire.bandwidth)


def _permute(levels: list[tuple[Wire, ...]]) -> Line:
    """To the neighbour on one wire. Over several wires the shift is any permutation, of which half the devices send
    over the middle of the longest one."""
    wires = [wire for level in levels for wire in level]
    latency = sum(wire.latency * (1 if wire.wraps else _hops(wire)) for wire in wires)
    slopes = [1 / wire.bandwidth for wire in wires]
    if len(wires) > 1:
        slopes += [wire.size / (8 if wire.wraps else 4) / wire.bandwidth for wire in wires if wire.kind == "ici"]
    return latency, max(slopes)


def _rate(wire: Wire) -> float:
    """Bytes/s that a gather takes in along this wire."""
    return wire.bandwidth * (2 if wire.wraps else 1)


def _hops(wire: Wire) -> int:
    return wire.size // 2 if wire.wraps else wire.size - 1
