"""The JAX edge of the machine: meshes of real devices, and the machine that this process runs on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from meshes.assign import assign, split_slices
from meshes.chip import Chip, chip_names, read_chip
from meshes.machine import Machine, load_machine
from meshes.mesh import LogicalMesh
from planner.errors import InputError


def jax_mesh(mesh: LogicalMesh, devices: Sequence[Any] | None = None) -> Mesh:
    """The jax Mesh of a logical mesh, with Auto axes, in the device order its wires were found for.

    devices: jax devices; those of this process if None, and the first ones if there are more than the mesh
    needs. Raises InputError where there are too few.
    """
    given = list(jax.devices() if devices is None else devices)
    check_devices(mesh, given)
    used = given[: mesh.devices]
    if used[0].platform == "tpu":
        return auto_mesh(_on_torus(mesh, used), mesh.axes)
    return auto_mesh(np.array(used).reshape(mesh.shape), mesh.axes)


def _on_torus(mesh: LogicalMesh, devices: Sequence[Any]) -> np.ndarray:
    slices = len({_slice_of(device) for device in devices})
    spans = split_slices(slices, mesh.shape)
    if math.prod(spans) != slices:
        raise InputError(
            f"Mesh {mesh} cannot be laid over {slices} slices; make an outer axis a multiple of {slices}."
        )
    inner = [size // span for size, span in zip(mesh.shape, spans, strict=True)]
    if max(inner) == len(devices):
        # Along one axis over a whole slice jax may walk the devices in a ring, neighbour by neighbour.
        return mesh_utils.create_device_mesh(inner, devices)
    return _torus_order(devices, slices, spans, inner)


def _torus_order(
    devices: Sequence[Any], slices: int, spans: Sequence[int], inner: Sequence[int]
) -> np.ndarray:
    """The devices of a TPU by their places, each logical axis over the physical ones that `assign` gave it.

    jax's own order is the same, but for small slices: there it is one ring whatever the mesh, so that an axis
    may run across two physical ones; and before 0.12 it did not know that the dies of a chip come first.
    spans, inner: slices along each logical axis, and devices of a slice.
    """
    numbers = {number: place for place, number in enumerate(sorted({_slice_of(one) for one in devices}))}
    places = np.array([(numbers[_slice_of(one)], *one.coords, one.core_on_chip) for one in devices])
    torus = places.max(axis=0) + 1
    physical = [int(size) for size in (torus[1:] if torus[-1] > 1 else torus[1:-1])]
    shares = [list(spans), *map(list, zip(*assign(physical, inner), strict=True))]
    grid = np.empty([slices, *physical], dtype=object)
    for place, device in zip(places, devices, strict=True):
        grid[tuple(place[: grid.ndim])] = device
    axes = len(inner)
    outward = [dim * axes + axis for axis in range(axes) for dim in range(grid.ndim)]
    shape = [span * size for span, size in zip(spans, inner, strict=True)]
    return grid.reshape([share for dim in shares for share in dim]).transpose(outward).reshape(shape)


def _slice_of(device: Any) -> int:
    return getattr(device, "slice_index", None) or 0


def auto_mesh(devices: np.ndarray, axes: tuple[str, ...]) -> Mesh:
    """A jax Mesh all of whose axes are Auto: under Explicit ones a sharding constraint raises."""
    return Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(axes))


def logical_of(mesh: Mesh) -> dict[str, int]:
    """Axis sizes of a jax Mesh, in order, for `meshes.mesh.mesh_of`."""
    return dict(mesh.shape)


def check_devices(wanted: Machine | LogicalMesh, devices: Sequence[Any]) -> None:
    """Raises InputError, with what to do, where there are fewer devices than the machine or mesh has."""
    if len(devices) >= wanted.devices:
        return
    name = wanted.name if isinstance(wanted, Machine) else f"Mesh {wanted}"
    have = f"{name} needs {wanted.devices} devices but this process has {len(devices)}"
    if not devices or devices[0].platform == "cpu":
        flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted.devices}"
        raise InputError(
            f"{have}; set {flag} before jax is imported, or plan for cpu:{max(len(devices), 1)}."
        )
    raise InputError(f"{have} of kind {devices[0].device_kind!r}; plan for the devices there are.")


def machine_of_process() -> Machine:
    """The machine that JAX's devices make up: their kind names the chip, their places its shape.

    Raises InputError for a kind of device without a chip file.
    """
    devices = jax.devices()
    first = devices[0]
    if first.platform == "cpu":
        return load_machine(f"cpu:{len(devices)}")
    chip = _chip_of(first.device_kind)
    if chip.kind == "gpu":
        nodes = (
            len({device.process_index for device in devices})
            if len(devices) > chip.number("gpus_per_node")
            else 1
        )
        return load_machine(f"{chip.name}:{nodes}x{len(devices) // nodes}")
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    sides = _bounds([device.coords for device in devices])
    shape = "x".join(map(str, sides[: len(chip.slices[0])]))
    return load_machine(f"{chip.name}:{shape}*{slices}")


def _bounds(coords: Sequence[Sequence[int]]) -> list[int]:
    """The lengths of the box that the coordinates fill."""
    return [max(axis) - min(axis) + 1 for axis in zip(*coords, strict=True)]


def _chip_of(device_kind: str) -> Chip:
    known: Mapping[str, str] = {kind: name for name in chip_names() for kind in read_chip(name).device_kinds}
    if device_kind not in known:
        raise InputError(
            f"No chip file describes devices of kind {device_kind!r}; "
            "name the machine they are most like, as in machine='tpu_v5e:4x4'."
        )
    return read_chip(known[device_kind])
