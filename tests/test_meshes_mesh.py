"""Logical meshes: how many, in which order, and that their wires are those of JAX's device order."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from jax.experimental import mesh_utils

from meshes.assign import split_slices
from meshes.host import Host
from meshes.machine import Machine, cpu_machine, load_machine
from meshes.mesh import LogicalMesh, enumerate_meshes, mesh_of, preferred_meshes
from planner.errors import InputError

DIES = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="JAX before 0.12 has no order of dies")
CPU = cpu_machine(8, Host(8e10, 1e10, 1e-5, 1e-6, 2, "test"), 2**33)


@dataclasses.dataclass(frozen=True)
class FakeTpu:
    """What `create_device_mesh` asks of a device."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int
    device_kind: str
    platform: str = "tpu"


def fake_devices(machine: Machine) -> list[FakeTpu]:
    """The devices of one slice, in an order that is not that of the torus."""
    _, x, y, z, *cores = (wire.size for wire in machine.topology.wires)
    kind = machine.chip.device_kinds[0]
    places = itertools.product(range(z), range(y), range(x), range(cores[0] if cores else 1))
    return [FakeTpu(i, (a, b, c), core, kind) for i, (c, b, a, core) in enumerate(places)]


def rows_of(order: np.ndarray) -> list[dict[str, tuple[int, int]]]:
    """Per logical axis of JAX's order: the physical axes it walks, in how many places, how far apart."""
    found = []
    for axis in range(order.ndim):
        line = np.moveaxis(order, axis, 0).reshape(order.shape[axis], -1)[:, 0]
        places = np.array([(*device.coords, device.core_on_chip) for device in line])
        walked = {}
        for name, column in zip(("ici0", "ici1", "ici2", "die"), places.T, strict=True):
            distinct = np.unique(column)
            if len(distinct) > 1:
                walked[name] = (len(distinct), int(np.diff(distinct).min()))
        found.append(walked)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "tpu_v4:2x2x4",
        "tpu_v4:4x4x4",
        "tpu_v4:4x4x8",
        "tpu_v5p:4x8x12",
        "tpu_v5p:8x8x16",
        "tpu_v5e:4x8",
        "tpu_v5e:8x16",
        "tpu_v5e:16x16",
        pytest.param("tpu_7x:4x4x4", marks=DIES),
        pytest.param("tpu_7x:2x4x4", marks=DIES),
        pytest.param("tpu_7x:4x8x8", marks=DIES),
    ],
)
def test_wires_are_those_of_jax_device_order(text: str):
    machine = load_machine(text)
    devices = fake_devices(machine)
    for mesh in enumerate_meshes(machine):
        order = mesh_utils.create_device_mesh(mesh.shape, devices, allow_split_physical_axes=True)
        ours = [{wire.name: (wire.size, wire.stride) for wire in wires} for wires in mesh.wires]
        assert ours == rows_of(order), mesh


def test_size_one_axes_have_no_wires_and_change_nothing():
    machine = load_machine("tpu_v5e:4x8")
    mesh = mesh_of(machine, {"data": 4, "none": 1, "model": 8})
    assert mesh.wires[1] == ()
    assert (mesh.wires[0], mesh.wires[2]) == mesh_of(machine, {"data": 4, "model": 8}).wires
    order = mesh_utils.create_device_mesh((4, 1, 8), fake_devices(machine), allow_split_physical_axes=True)
    assert [{w.name: (w.size, w.stride) for w in wires} for wires in mesh.wires] == rows_of(order)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("tpu_v5e:4x4", (1, 3, 3)),
        ("tpu_v5p:8x8x16", (1, 9, 36)),
        ("tpu_v5p:4x4x12", (1, 12, 45)),
        ("h100:1x8", (1, 2, 1)),
    ],
)
def test_all_ordered_factorisations(text: str, counts: tuple[int, int, int]):
    machine = load_machine(text)
    meshes = enumerate_meshes(machine)
    assert tuple(sum(len(mesh.axes) == count for mesh in meshes) for count in (1, 2, 3)) == counts
    assert all(math.prod(mesh.shape) == machine.devices and min(mesh.shape) > 1 for mesh in meshes)
    assert len({mesh.shape for mesh in meshes}) == len(meshes)
    assert all(mesh.axes == ("x", "y", "z")[: len(mesh.shape)] for mesh in meshes)
    assert [mesh.shape for mesh in enumerate_meshes(machine, max_axes=1)] == [(machine.devices,)]


@pytest.mark.parametrize(
    ("machine", "shapes"),
    [
        (load_machine("tpu_v5e:4x4"), [(16,), (4, 4), (2, 8), (8, 2), (2, 2, 4)]),
        (
            load_machine("tpu_v5p:8x8x16"),
            [(1024,), (16, 64), (64, 16), (8, 128), (128, 8), (8, 8, 16), (8, 16, 8), (16, 8, 8)],
        ),
        (load_machine("tpu_v5e:16x16*2"), [(512,), (32, 16), (2, 256), (2, 16, 16)]),
        (load_machine("tpu_v5e:1x1"), [(1,)]),
        (CPU, [(8,), (2, 4), (4, 2), (2, 2, 2)]),
    ],
)
def test_preferred(machine: Machine, shapes: list[tuple[int, ...]]):
    assert [mesh.shape for mesh in preferred_meshes(machine)] == shapes


def test_preferred_is_a_short_beginning_of_all():
    for text in ("h100:4x8", "tpu_7x:4x4x4", "tpu_v5p:4x8x12", "gb200:4x72"):
        machine = load_machine(text)
        short = preferred_meshes(machine)
        assert 4 <= len(short) <= 13
        assert short[:4] == enumerate_meshes(machine)[:4]
        assert {len(mesh.axes) for mesh in short} == {1, 2, 3}


def names(mesh: LogicalMesh) -> list[list[tuple[str, int]]]:
    return [[(wire.name, wire.size) for wire in wires] for wires in mesh.wires]


@pytest.mark.parametrize(
    ("shape", "wires"),
    [
        ((32,), [[("node", 4), ("nvlink", 8)]]),
        ((4, 8), [[("node", 4)], [("nvlink", 8)]]),
        ((8, 4), [[("node", 4), ("nvlink", 2)], [("nvlink", 4)]]),
        ((2, 16), [[("node", 2)], [("node", 2), ("nvlink", 8)]]),
        ((2, 4, 4), [[("node", 2)], [("node", 2), ("nvlink", 2)], [("nvlink", 4)]]),
    ],
)
def test_gpu_axes(shape: tuple[int, ...], wires: list[list[tuple[str, int]]]):
    assert names(mesh_of(load_machine("h100:4x8"), dict(zip("xyz", shape, strict=False)))) == wires


def test_an_axis_that_leaves_a_node_half_way_counts_as_network():
    assert names(mesh_of(load_machine("h100:2x6"), {"x": 3, "y": 4})) == [[("node", 3)], [("node", 4)]]
    assert names(mesh_of(load_machine("h100:2x6"), {"x": 4, "y": 3})) == [
        [("node", 2), ("nvlink", 2)],
        [("nvlink", 3)],
    ]


def test_slices_go_to_the_outer_axes():
    assert split_slices(4, (2, 2, 256)) == (2, 2, 1)
    assert split_slices(4, (8, 8)) == (4, 1)
    assert split_slices(3, (256, 3)) == (1, 3)
    assert mesh_of(load_machine("tpu_v5p:4x4x12*5"), {"x": 4, "y": 240}).wires[1][0].name == "dcn"
    machine = load_machine("tpu_v5e:16x16*2")
    mesh = mesh_of(machine, {"x": 32, "y": 16})
    assert names(mesh) == [[("dcn", 2), ("ici1", 16)], [("ici0", 16)]]


def test_parts_of_a_ring():
    machine = load_machine("tpu_v5e:16x16")
    outer, inner = mesh_of(machine, {"x": 64, "y": 4}).wires
    assert (inner[0].wraps, inner[0].stride, inner[0].bandwidth) == (False, 1, 45e9)
    # Every fourth chip of the ring: it still closes, but four groups share each link.
    assert (outer[0].wraps, outer[0].stride, outer[0].bandwidth, outer[0].latency) == (
        True,
        4,
        45e9 / 4,
        4e-6,
    )
    assert (outer[1].wraps, outer[1].size, outer[1].whole) == (True, 16, True)


def test_meshes_are_values():
    machine = load_machine("tpu_v5e:4x4")
    mesh = mesh_of(machine, {"x": 4, "y": 4})
    assert mesh == mesh_of(machine, {"x": 4, "y": 4})
    assert len({mesh, mesh_of(machine, {"x": 4, "y": 4}), mesh_of(machine, {"y": 4, "x": 4})}) == 2
    assert mesh.sizes == {"x": 4, "y": 4}
    assert str(mesh) == "x=4 x y=4"
    assert mesh.devices == 16


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        (
            "tpu_v5e:4x4",
            {"x": 4, "y": 8},
            "Mesh x=4, y=8 has 32 devices but tpu_v5e:4x4 has 16; choose axis sizes whose product is 16.",
        ),
        (
            "tpu_v5e:4x4",
            {},
            "Mesh without axes has 1 devices but tpu_v5e:4x4 has 16; choose axis sizes whose product is 16.",
        ),
        ("tpu_v5e:4x4", {"x": 0, "y": 8}, "Mesh axis 'x' has size 0; give a whole number of at least 1."),
        ("tpu_v5e:4x4", {"x": 4.0, "y": 4}, "Mesh axis 'x' has size 4.0; give a whole number of at least 1."),
    ],
)
def test_wrong_meshes(text: str, sizes: dict[str, int], message: str):
    with pytest.raises(InputError) as error:
        mesh_of(load_machine(text), sizes)
    assert str(error.value) == message
