"""The JAX edge of the machine: meshes of real devices, and the machine that this process runs on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from meshes.assign import split_slices
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
    slices = len({getattr(device, "slice_index", 0) for device in used})
    spans = split_slices(slices, mesh.shape)
    if math.prod(spans) != slices:
        raise InputError(
            f"Mesh {mesh} cannot be laid over {slices} slices; make an outer axis a multiple of {slices}."
        )
    inner = [size // span for size, span in zip(mesh.shape, spans, strict=True)]
    if slices > 1:
        order = mesh_utils.create_hybrid_device_mesh(inner, spans, used, allow_split_physical_axes=True)
    else:
        order = mesh_utils.create_device_mesh(inner, used, allow_split_physical_axes=True)
    return auto_mesh(order, mesh.axes)


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
