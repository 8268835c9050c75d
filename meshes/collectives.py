"""What a collective takes: seconds on given wires, and bytes each device sends.

`bytes` is always the whole array that one group of devices holds between them: gathered (all_gather), before
it is scattered (reduce_scatter), the array each device holds (all_reduce), all devices' parts together
(all_to_all). For permute it is what each device sends.

Every time is the least of a few straight lines `latency + bytes * slope` (`lines`): one where it is measured
(`meshes.machine_file`), else one on TPU and CPU, one per algorithm and protocol on GPU (`meshes.nccl`). Times
are monotone in bytes. On a TPU, with V = bytes, n = group, W = one-way bytes/s of a link, a = seconds per hop
(scaling book, chapter on sharding; an all-reduce is a reduce_scatter and an all_gather in turn):

    all_gather, reduce_scatter   ring: V (n-1)/n / 2W + a n/2        line: V (n-1)/n / W + a (n-1)
                                 torus axes run a ring order each, so their rates add and so do their hops
    all_to_all                   the tightest cut: V/4 crosses it each way, over 2W on a ring and W on a line
    permute                      to the neighbour: bytes / W + a; a line's ends are n-1 hops apart

Groups that span levels (dies, torus, slices) work level by level: an outer level carries 1/n of what the
inner one of n devices carries. Devices of one host copy through its memory: a gather writes the whole array
once a device.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Literal, get_args

from meshes.machine import Machine
from meshes.mesh import LogicalMesh
from meshes.nccl import gpu_lines
from meshes.topology import Wire

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
Line = tuple[float, float]  # seconds, seconds per byte

KINDS: tuple[str, ...] = get_args(Kind)

# A gather of 32 kB shards over 4 chips of TPU v5e takes 8 us (scaling book): 3 us are hops and 2 us bytes.
TPU_START_S = 3e-6

_LEVELS = ("die", "ici", "dcn")  # innermost first


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
    measured = machine.measured.get((kind, group_name(wires)))
    if measured is not None:
        return (measured,)
    if machine.chip.kind == "gpu":
        return gpu_lines(machine.chip, kind, wires)
    if machine.chip.kind == "cpu":
        return (_host_line(kind, wires),)
    levels = [level for level in (_joined(wires, kind) for kind in _LEVELS) if level]
    if kind == "all_to_all":
        latency, slope = _exchange(levels)
    elif kind == "permute":
        latency, slope = _permute(levels)
    else:
        turns = 2 if kind == "all_reduce" else 1
        latency, slope = (turns * term for term in _gather(levels))
    return ((TPU_START_S + latency, slope),)


def group_name(wires: Iterable[Wire]) -> str:
    """What tells one kind of group from another: its devices on each kind of wire, and along each torus axis.

    >>> group_name([Wire("node", "network", 2, 1.0, 0.0), Wire("nvlink", "nvlink", 8, 1.0, 0.0)])
    'network:2 nvlink:8'
    """
    sides: dict[str, list[int]] = {}
    for wire in wires:
        sides.setdefault(wire.kind, []).append(wire.size)
    names = (
        f"{kind}:{'x'.join(map(str, sorted(sizes)))}" if kind == "ici" else f"{kind}:{math.prod(sizes)}"
        for kind, sizes in sides.items()
    )
    return " ".join(sorted(names))


def _host_line(kind: str, wires: tuple[Wire, ...]) -> Line:
    """Copies through the host's memory after all its threads have met."""
    group = math.prod(wire.size for wire in wires)
    copies = {"all_reduce": 2.0, "all_to_all": 1.0 / group}.get(kind, 1.0)
    return wires[0].latency, copies / wires[0].bandwidth


def _joined(wires: tuple[Wire, ...], kind: str) -> list[Wire]:
    """The wires of this kind, parts of one physical wire that touch joined to one."""
    found: list[Wire] = []
    for wire in sorted((w for w in wires if w.kind == kind), key=lambda w: (w.name, w.stride)):
        last = found[-1] if found else None
        if last is not None and last.name == wire.name and wire.stride == last.stride * last.size:
            found[-1] = _join(last, wire)
        else:
            found.append(wire)
    return found


def _join(inner: Wire, outer: Wire) -> Wire:
    """One row of the devices of two rows on the same physical wire, on the links of the inner one."""
    return dataclasses.replace(inner, size=inner.size * outer.size, wraps=outer.wraps)


def _gather(levels: list[list[Wire]]) -> Line:
    latency, slope, inner = 0.0, 0.0, 1
    for level in levels:
        size = math.prod(wire.size for wire in level)
        latency += sum(wire.latency * _hops(wire) for wire in level)
        slope += (size - 1) / size / sum(_rate(wire) for wire in level) / inner
        inner *= size
    return latency, slope


def _exchange(levels: list[list[Wire]]) -> Line:
    latency, slope = 0.0, 0.0
    group = math.prod(wire.size for level in levels for wire in level)
    for level in levels:
        size = math.prod(wire.size for wire in level)
        latency += sum(wire.latency * _hops(wire) for wire in level)
        slope += max(_cut(wire, size) for wire in level) * size / group
    return latency, slope


def _cut(wire: Wire, size: int) -> float:
    """Seconds per byte of the level's array over the middle of this wire; `size` devices in the level."""
    if wire.kind == "dcn":
        return (size - 1) / size**2 / wire.bandwidth
    crossing = (wire.size // 2) * ((wire.size + 1) // 2) / wire.size**2
    links = size // wire.size * (2 if wire.wraps else 1)
    return crossing / (links * wire.bandwidth)


def _permute(levels: list[list[Wire]]) -> Line:
    """To the neighbour on one wire. Over several wires the shift is any permutation, of which half the
    devices send over the middle of the longest one."""
    wires = [wire for level in levels for wire in level]
    latency = sum(wire.latency * (1 if wire.wraps else _hops(wire)) for wire in wires)
    slopes = [1 / wire.bandwidth for wire in wires]
    if len(wires) > 1:
        slopes += [
            wire.size / (8 if wire.wraps else 4) / wire.bandwidth for wire in wires if wire.kind == "ici"
        ]
    return latency, max(slopes)


def _rate(wire: Wire) -> float:
    """Bytes/s that a gather takes in along this wire."""
    return wire.bandwidth * (2 if wire.wraps else 1)


def _hops(wire: Wire) -> int:
    return wire.size // 2 if wire.wraps else wire.size - 1
