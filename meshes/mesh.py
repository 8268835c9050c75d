"""LogicalMesh: named axes over the devices of a machine, and the wires each axis rides on.

Device order is that of `jax.experimental.mesh_utils.create_device_mesh`: the last axis is innermost.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping

from meshes.assign import Wires, wires_of
from meshes.chip import Shape
from meshes.machine import Machine
from planner.errors import InputError

AXIS_NAMES = ("x", "y", "z")
_SHORT_LIST = 12
_AT_LEAST = 4


@dataclasses.dataclass(frozen=True)
class LogicalMesh:
    """axes: names, outermost first. shape: their sizes. wires: per axis, outermost first; none for size 1."""

    axes: tuple[str, ...]
    shape: Shape
    wires: Wires

    @functools.cached_property
    def sizes(self) -> Mapping[str, int]:
        """Axis name -> size, in order."""
        return dict(zip(self.axes, self.shape, strict=True))

    @property
    def devices(self) -> int:
        return math.prod(self.shape)

    def __hash__(self) -> int:
        return hash((self.axes, self.shape))

    def __str__(self) -> str:
        return " x ".join(f"{axis}={size}" for axis, size in self.sizes.items())


def mesh_of(machine: Machine, sizes: Mapping[str, int]) -> LogicalMesh:
    """The mesh a user asked for, by axis name, outermost first.

    Raises InputError where the sizes do not multiply to the devices.
    """
    shape = tuple(sizes.values())
    text = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    wrong = [axis for axis, size in sizes.items() if not isinstance(size, int) or size < 1]
    if wrong:
        raise InputError(
            f"Mesh axis {wrong[0]!r} has size {sizes[wrong[0]]!r}; give a whole number of at least 1."
        )
    if not shape or math.prod(shape) != machine.devices:
        raise InputError(
            f"Mesh {text or 'without axes'} has {math.prod(shape)} devices but {machine.name} has "
            f"{machine.devices}; choose axis sizes whose product is {machine.devices}."
        )
    return LogicalMesh(tuple(sizes), shape, wires_of(machine.topology, shape))


@functools.lru_cache(maxsize=64)
def enumerate_meshes(machine: Machine, max_axes: int = 3) -> tuple[LogicalMesh, ...]:
    """All meshes of up to `max_axes` axes x, y, z, each larger than 1: those that split no torus axis first,
    then fewer axes, then sides that are alike. A machine of one device has the mesh x=1."""
    names = AXIS_NAMES[:max_axes]
    shapes = [
        shape for count in range(1, len(names) + 1) for shape in _factorisations(machine.devices, count)
    ]
    meshes = [
        LogicalMesh(names[: len(shape)], shape, wires_of(machine.topology, shape))
        for shape in shapes or [(1,)]
    ]
    return tuple(sorted(meshes, key=_misfit))


def preferred_meshes(machine: Machine, max_axes: int = 3) -> tuple[LogicalMesh, ...]:
    """The meshes worth trying first, about a dozen at most: those made of whole physical axes and their
    merges, and where these are fewer than four, the next ones of `enumerate_meshes`; then the best one of
    every number of axes that is still missing, because some schemes are at home on no other."""
    meshes = enumerate_meshes(machine, max_axes)
    whole = sum(_splits(mesh) == 0 for mesh in meshes)
    first = meshes[: min(max(whole, _AT_LEAST), _SHORT_LIST)]
    found = {len(mesh.axes): mesh for mesh in reversed(meshes[len(first) :])}
    there = {len(mesh.axes) for mesh in first}
    return (*first, *(found[count] for count in sorted(found) if count not in there))


def _factorisations(devices: int, count: int) -> Iterator[Shape]:
    """All ordered ways to write `devices` as `count` factors larger than 1."""
    if count == 1:
        if devices > 1:
            yield (devices,)
        return
    for first in range(2, devices // 2 + 1):
        if devices % first == 0:
            for rest in _factorisations(devices // first, count - 1):
                yield (first, *rest)


def _splits(mesh: LogicalMesh) -> int:
    """How badly the axes fit the wires: parts of torus axes, and axes over an island and a part of the
    network.

    Islands, networks and shared memory serve any part of them equally well.
    """
    torus = sum(not wire.whole for wires in mesh.wires for wire in wires if wire.kind in ("ici", "die"))
    mixed = sum(
        any(wire.kind in ("network", "dcn") and not wire.whole for wire in wires)
        for wires in mesh.wires
        if len(wires) > 1
    )
    return torus + mixed


def _misfit(mesh: LogicalMesh) -> tuple[int, int, float, Shape]:
    return _splits(mesh), len(mesh.axes), max(mesh.shape) / min(mesh.shape), mesh.shape
