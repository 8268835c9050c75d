"""Text to machine: what each form means per device, that names parse back, and how wrong text is answered."""

import dataclasses

import pytest

from meshes.host import Host
from meshes.machine import FORMS, cpu_machine, load_machine, machine_names
from planner.errors import InputError

HOST = Host(flops_per_s=80e9, copy_bytes_per_s=10e9, handover_s=1e-5, call_s=1e-6, cores=4, processor="test")


@pytest.mark.parametrize(
    ("text", "name", "devices", "memory"),
    [
        ("tpu_v5e:4x4", "tpu_v5e:4x4", 16, 17179869184),
        ("v5e:8x4", "tpu_v5e:4x8", 32, 17179869184),
        ("tpu_v5p:8x8x16", "tpu_v5p:8x8x16", 1024, 102005473280),
        ("tpu_v5e:16x16*2", "tpu_v5e:16x16*2", 512, 17179869184),
        ("tpu_v4:4x4x4", "tpu_v4:4x4x4", 64, 34359738368),
        ("tpu_7x:4x4x4", "tpu_7x:4x4x4", 128, 103079215104),
        ("gpu_h100_sxm_80gb:4x8", "gpu_h100_sxm_80gb:4x8", 32, 84942979072),
        (" h100 : 8 ", "gpu_h100_sxm_80gb:1x8", 8, 84942979072),
        ("gb200:2x72", "gpu_gb200_nvl72:2x72", 144, 197897748480),
    ],
)
def test_forms(text: str, name: str, devices: int, memory: float):
    machine = load_machine(text)
    assert (machine.name, machine.devices, machine.memory_bytes) == (name, devices, memory)
    assert load_machine(machine.name) == machine
    assert hash(load_machine(machine.name)) == hash(machine)


@pytest.mark.parametrize(
    ("text", "dtype", "peak"),
    [
        ("tpu_v5e:1x1", "bfloat16", 197e12),
        ("tpu_v5e:1x1", "float32", 197e12),
        ("tpu_v5e:1x1", "float16", 197e12),
        ("tpu_v5e:1x1", "int8", 393e12),
        ("tpu_v5e:1x1", "int4", 788e12),
        ("tpu_v5e:1x1", "float64", 98.5e12),
        ("tpu_v5e:1x1", "float8_e4m3fn", 197e12),
        ("tpu_7x:1x1x1", "bfloat16", 1153.5e12),
        ("tpu_7x:1x1x1", "float32", 576.75e12),
        ("tpu_7x:1x1x1", "float8_e5m2", 2307e12),
        ("h100:1", "float32", 494.5e12),
        ("h100:1", "float8_e4m3fn", 1979e12),
        ("h100:1", "int32", 494.5e12),
        ("v100:1", "bfloat16", 15.7e12),
        ("v100:1", "float16", 125e12),
        ("b200:1", "float4_e2m1fn", 9e15),
    ],
)
def test_peaks_per_device(text: str, dtype: str, peak: float):
    assert load_machine(text).peak_flops(dtype) == pytest.approx(peak, rel=1e-12)


def test_efficiency_is_measured_or_a_stated_default():
    assert load_machine("v6e:1x1").matmul_efficiency == 0.9009
    assert load_machine("h100:1").matmul_efficiency == 0.577
    assert load_machine("v5e:1x1").matmul_efficiency == 0.90
    assert load_machine("l4:1").matmul_efficiency == 0.80
    assert (
        load_machine("v5e:1x1").mxu_dim,
        load_machine("v6e:1x1").mxu_dim,
        load_machine("h100:1").mxu_dim,
    ) == (
        128,
        256,
        0,
    )


def test_host_devices_share_the_host():
    machine = cpu_machine(8, HOST, memory=16 * 2**30)
    assert machine.name == "cpu:8"
    assert machine.devices == 8
    assert machine.peak_flops("float32") == machine.peak_flops("bfloat16") == 10e9
    assert machine.peak_flops("float64") == 5e9
    assert machine.hbm_bandwidth == 2.5e9  # half of it reads, half of it writes
    assert machine.memory_bytes == 2 * 2**30
    assert machine.overhead_seconds == 2e-6  # eight devices take turns on four cores
    assert machine != cpu_machine(8, Host(80e9, 20e9, 1e-5, 1e-6, 4, "test"), memory=16 * 2**30)


def test_names_for_the_command_line():
    assert machine_names()[0] == "cpu"
    assert "tpu_v5e" in machine_names()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu_v9:4x4", "Unknown chip 'tpu_v9'; did you mean tpu_v5p or tpu_v4 or tpu_v6e?"),
        ("a100:8", "Ambiguous chip 'a100'; did you mean gpu_a100_sxm_40gb or gpu_a100_sxm_80gb?"),
        ("tpu_v5e:4x5", "tpu_v5e has no slice of shape 4x5; the nearest are 2x4, 4x4, 4x8."),
        ("tpu_v5p:3x3x3", "tpu_v5p has no slice of shape 3x3x3; the nearest are 2x2x4, 2x4x4, 4x4x4."),
        ("h100:16", "A node of gpu_h100_sxm_80gb has at most 8 GPUs, not 16; write gpu_h100_sxm_80gb:2x8."),
        (
            "h100:2x2x2",
            "gpu_h100_sxm_80gb machines are NODESxGPUS, which 2x2x2 is not; write gpu_h100_sxm_80gb:4x8 "
            "for four nodes of 8.",
        ),
        (
            "h100:8*2",
            "gpu_h100_sxm_80gb machines are NODESxGPUS, which 8*2 is not; write gpu_h100_sxm_80gb:4x8 "
            "for four nodes of 8.",
        ),
        ("cpu:2x4", "Machine 'cpu:2x4' gives the host's cores a shape; write cpu:8."),
        ("tpu_v5e", f"Machine 'tpu_v5e' is not of the form CHIP:SHAPE; write it as {FORMS}."),
        ("tpu_v5e:4x", f"Machine 'tpu_v5e:4x' is not of the form CHIP:SHAPE; write it as {FORMS}."),
        ("", f"Machine '' is not of the form CHIP:SHAPE; write it as {FORMS}."),
        (
            "v5e:0x4",
            f"Machine 'v5e:0x4' has a size of zero; give every size as at least 1, as in {FORMS}.",
        ),
    ],
)
def test_wrong_text(text: str, message: str):
    with pytest.raises(InputError) as error:
        load_machine(text)
    assert str(error.value) == message


def test_a_word_like_no_chip_lists_them_all():
    with pytest.raises(
        InputError,
        match=r"^Unknown chip 'zzz'; write cpu, or one of gpu_a100.*, tpu_v6e, as in 'tpu_v5e:4x4'\.$",
    ):
        load_machine("zzz:8")


def test_machines_of_one_name_with_other_rates_differ():
    """Prices are remembered by machine: one with measured rates must not get those of the book."""
    book = load_machine("gpu_a100_sxm_80gb:2x8")
    assert book == load_machine("gpu_a100_sxm_80gb:2x8")
    assert hash(book) == hash(load_machine("gpu_a100_sxm_80gb:2x8"))
    assert book != dataclasses.replace(book, matmul_efficiency=0.5)
    slower = dataclasses.replace(book.chip, numbers={**book.chip.numbers, "nccl_ll_bytes_per_s": 1e9})
    assert book != dataclasses.replace(book, chip=slower)
