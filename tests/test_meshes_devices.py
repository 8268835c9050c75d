"""The JAX edge: meshes of this process' devices, and the machine that devices make up."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from test_meshes_mesh import fake_devices, rows_of

from meshes import devices as module
from meshes.devices import auto_mesh, check_devices, jax_mesh, logical_of, machine_of_process
from meshes.host import Host
from meshes.machine import cpu_machine, load_machine
from meshes.mesh import enumerate_meshes, mesh_of
from planner.errors import InputError

CPU = cpu_machine(8, Host(8e10, 1e10, 1e-5, 1e-6, 2, "test"), 2**33)


@dataclasses.dataclass(frozen=True)
class Fake:
    """What the functions under test ask of a device."""

    id: int
    platform: str
    device_kind: str
    process_index: int = 0
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0
    slice_index: int = 0


def tpus(kind: str, shape: tuple[int, int, int], cores: int = 1, slices: int = 1) -> list[Fake]:
    places = [(s, *place) for s in range(slices) for place in np.ndindex(*shape[::-1], cores)]
    return [Fake(i, "tpu", kind, 0, (x, y, z), core, s) for i, (s, z, y, x, core) in enumerate(places)]


def test_a_mesh_of_this_process_is_auto_and_in_order():
    logical = mesh_of(CPU, {"x": 2, "y": 4})
    mesh = jax_mesh(logical)
    assert logical_of(mesh) == logical.sizes == {"x": 2, "y": 4}
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)
    assert mesh.devices.tolist() == np.array(jax.devices()).reshape(2, 4).tolist()
    placed = jax.device_put(np.arange(8.0), NamedSharding(mesh, PartitionSpec(("x", "y"))))
    assert [shard.device.id for shard in placed.addressable_shards] == [device.id for device in jax.devices()]


def test_more_devices_than_needed_are_left_alone():
    mesh = jax_mesh(mesh_of(cpu_machine(4, Host(8e10, 1e10, 1e-5, 1e-6, 2, "test"), 2**33), {"x": 4}))
    assert mesh.devices.tolist() == jax.devices()[:4]


def test_an_explicit_mesh_is_rebuilt_as_auto():
    users = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    ours = auto_mesh(users.devices, users.axis_names)
    assert ours.axis_types == (AxisType.Auto, AxisType.Auto)
    assert ours.devices.tolist() == users.devices.tolist()
    assert logical_of(users) == {"data": 4, "model": 2}


def test_two_slices_are_laid_out_slice_by_slice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "auto_mesh", lambda order, axes: order)
    machine = load_machine("tpu_v5e:4x8*2")
    order: Any = jax_mesh(mesh_of(machine, {"x": 8, "y": 8}), tpus("TPU v5 lite", (4, 8, 1), slices=2))
    assert [device.slice_index for device in order[:, 0]] == [0] * 4 + [1] * 4
    assert {device.coords[0] for device in order[0]} == {0}


@pytest.mark.parametrize(
    "text",
    ["tpu_v4:2x2x2", "tpu_v5e:2x2", "tpu_v5e:2x4", "tpu_v5e:4x4", "tpu_v5p:2x2x2", "tpu_7x:2x2x2"]
    + ["tpu_7x:2x2x4", "tpu_v5p:4x4x4", "tpu_v5p:8x8x16"],
)
def test_every_axis_lies_on_its_wires_however_devices_are_listed(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "auto_mesh", lambda order, axes: order)
    machine = load_machine(text)
    devices = fake_devices(machine)
    shuffled = [devices[i] for i in np.random.default_rng(0).permutation(len(devices))]
    for mesh in enumerate_meshes(machine):
        order: Any = jax_mesh(mesh, shuffled)
        assert sorted(device.id for device in order.flat) == list(range(machine.devices))
        wires = [{wire.name: (wire.size, wire.stride) for wire in wires} for wires in mesh.wires]
        assert wires == rows_of(order), mesh


def test_too_few_devices_say_what_to_do():
    with pytest.raises(InputError) as error:
        check_devices(mesh_of(load_machine("tpu_v5e:4x4"), {"x": 4, "y": 4}), jax.devices())
    assert str(error.value) == (
        "Mesh x=4 x y=4 needs 16 devices but this process has 8; set "
        "XLA_FLAGS=--xla_force_host_platform_device_count=16 before jax is imported, or plan for cpu:8."
    )
    with pytest.raises(InputError) as error:
        check_devices(load_machine("tpu_v5e:4x4"), tpus("TPU v5 lite", (2, 4, 1)))
    assert str(error.value) == (
        "tpu_v5e:4x4 needs 16 devices but this process has 8 of kind 'TPU v5 lite'; "
        "plan for the devices there are."
    )
    check_devices(CPU, jax.devices())


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (tpus("TPU v5 lite", (4, 4, 1)), "tpu_v5e:4x4"),
        (tpus("TPU v5 lite", (8, 4, 1), slices=2), "tpu_v5e:4x8*2"),
        (tpus("TPU v5", (4, 4, 4)), "tpu_v5p:4x4x4"),
        (tpus("TPU v4", (2, 2, 1)), "tpu_v4:2x2x1"),
        (tpus("TPU7x", (2, 2, 2), cores=2), "tpu_7x:2x2x2"),
        ([Fake(i, "gpu", "NVIDIA H100 80GB HBM3") for i in range(8)], "gpu_h100_sxm_80gb:1x8"),
        ([Fake(i, "gpu", "NVIDIA A100-SXM4-80GB", i // 8) for i in range(32)], "gpu_a100_sxm_80gb:4x8"),
    ],
)
def test_the_machine_of_devices(monkeypatch: pytest.MonkeyPatch, devices: list[Fake], name: str):
    monkeypatch.setattr(jax, "devices", lambda: devices)
    machine = machine_of_process()
    assert (machine.name, machine.devices) == (name, len(devices))


def test_the_machine_of_this_process():
    assert machine_of_process().name == "cpu:8"


def test_an_unknown_kind_of_device(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "devices", lambda: [Fake(0, "gpu", "Voodoo 2")])
    with pytest.raises(InputError) as error:
        machine_of_process()
    assert str(error.value) == (
        "No chip file describes devices of kind 'Voodoo 2'; name the machine they are most like, as in "
        "machine='tpu_v5e:4x4'."
    )
