"""Times against published break-even points and measurements, and the algebra that the formulas promise."""

import itertools
import timeit

import pytest

from meshes.collectives import KINDS, lines, seconds, wire_bytes
from meshes.host import Host
from meshes.machine import cpu_machine, load_machine
from meshes.mesh import enumerate_meshes, mesh_of

CPU = cpu_machine(8, Host(8e10, 1e10, 1e-5, 1e-6, 2, "test"), 2**33)


def slope(text: str, sizes: dict[str, int], kind: str, *axes: str) -> float:
    """Seconds per byte of large arrays, without the (n-1)/n that the break-even rules leave out."""
    machine = load_machine(text)
    mesh = mesh_of(machine, sizes)
    group = 1
    for axis in axes:
        group *= sizes[axis]
    return (
        (seconds(machine, mesh, kind, axes, 2e15) - seconds(machine, mesh, kind, axes, 1e15))
        / 1e15
        * group
        / (group - 1)
    )


@pytest.mark.parametrize(
    ("text", "sizes", "axes", "published", "within"),
    [
        # FLOP per byte at which a gather takes as long as the matmul: scaling book (training, GPUs), MaxText.
        ("tpu_v5p:8x8x16", {"x": 8, "y": 8, "z": 16}, ("x",), 2550, 0.01),
        ("tpu_v5p:8x8x16", {"x": 1024}, ("x",), 850, 0.01),
        ("tpu_v6e:16x16", {"x": 16, "y": 16}, ("y",), 5100, 0.01),
        ("tpu_v6e:16x16", {"x": 256}, ("x",), 2550, 0.01),
        ("tpu_v6e:8x8", {"x": 64}, ("x",), 5100, 0.01),  # both axes open
        (
            "tpu_7x:4x4x4",
            {"x": 4, "y": 4, "z": 4, "die": 2},
            ("x",),
            12800,
            0.10,
        ),  # its links are a tenth faster here
        ("tpu_v6e:16x16*2", {"x": 2, "y": 256}, ("x",), 73000, 0.01),
        ("gpu_h100_sxm_80gb:1x8", {"x": 8}, ("x",), 2200, 0.22),  # NCCL reaches 371 of 450 GB/s
        ("gpu_h100_sxm_80gb:4x8", {"x": 32}, ("x",), 2475, 0.08),
        ("gpu_b200:4x8", {"x": 32}, ("x",), 5600, 0.01),
    ],
)
def test_break_even_points(
    text: str, sizes: dict[str, int], axes: tuple[str, ...], published: float, within: float
):
    flops = load_machine(text).peak_flops("bfloat16")
    assert flops * slope(text, sizes, "all_gather", *axes) == pytest.approx(published, rel=within)


def test_latency_of_a_ring():
    machine = load_machine("tpu_v5p:8x8x16")
    mesh = mesh_of(machine, {"x": 8, "y": 8, "z": 16})
    (start, per_byte), (twice, _) = (
        *lines(machine, mesh, "all_gather", ("z",)),
        *lines(machine, mesh, "all_reduce", ("z",)),
    )
    assert start - 3e-6 == pytest.approx(8e-6)  # 16/2 hops of 1 us
    assert twice - 3e-6 == pytest.approx(16e-6)
    assert 8e-6 / per_byte == pytest.approx(1.4e6, rel=0.1)  # the published crossover


MiB = 2**20


def busbw(group: int, bytes: float, rate: float) -> float:
    """Seconds of an all-reduce whose bus bandwidth is published (nccl-tests)."""
    return 2 * (group - 1) / group * bytes / rate


@pytest.mark.parametrize(
    ("text", "sizes", "axes", "kind", "bytes", "measured", "within"),
    [
        # jax-ml/scaling-book, TPU v5e 8x4: the short axis is an open line.
        ("tpu_v5e:4x8", {"x": 8, "y": 4}, ("y",), "all_gather", 34e6, 680e-6, 0.16),
        ("tpu_v5e:4x8", {"x": 8, "y": 4}, ("y",), "all_gather", 4 * 32e3, 8e-6, 0.05),
        # VIA-Research/vTrain trace/{a100,v100}/AR_GPU*_1M_1024M_LUT.
        ("gpu_a100_sxm_80gb:2", {"x": 2}, ("x",), "all_reduce", 1 * MiB, 44.2e-6, 0.11),
        ("gpu_a100_sxm_80gb:4", {"x": 4}, ("x",), "all_reduce", 128 * MiB, 998.6e-6, 0.04),
        ("gpu_a100_sxm_80gb:8", {"x": 8}, ("x",), "all_reduce", 1 * MiB, 92.8e-6, 0.41),
        ("gpu_a100_sxm_80gb:8", {"x": 8}, ("x",), "all_reduce", 8 * MiB, 134.3e-6, 0.05),
        ("gpu_a100_sxm_80gb:8", {"x": 8}, ("x",), "all_reduce", 128 * MiB, 1162e-6, 0.05),
        ("gpu_a100_sxm_80gb:8", {"x": 8}, ("x",), "all_reduce", 1024 * MiB, 8193e-6, 0.03),
        ("gpu_v100_sxm2_16gb:2", {"x": 2}, ("x",), "all_reduce", 16 * MiB, 764.1e-6, 0.03),
        ("gpu_v100_sxm2_16gb:4", {"x": 4}, ("x",), "all_reduce", 16 * MiB, 324.2e-6, 0.06),
        ("gpu_v100_sxm2_16gb:8", {"x": 8}, ("x",), "all_reduce", 1 * MiB, 79.9e-6, 0.07),
        ("gpu_v100_sxm2_16gb:8", {"x": 8}, ("x",), "all_reduce", 128 * MiB, 1777e-6, 0.02),
        # stas00/ml-engineering network/README.md.
        ("gpu_h200_sxm_141gb:8", {"x": 8}, ("x",), "all_reduce", 1 * MiB, busbw(8, MiB, 39.9e9), 0.05),
        ("gpu_h200_sxm_141gb:8", {"x": 8}, ("x",), "all_reduce", 128 * MiB, busbw(8, 128 * MiB, 402e9), 0.08),
        (
            "gpu_h200_sxm_141gb:8",
            {"x": 8},
            ("x",),
            "all_reduce",
            1024 * MiB,
            busbw(8, 1024 * MiB, 464e9),
            0.03,
        ),
        ("gpu_b200:8", {"x": 8}, ("x",), "all_reduce", 1 * MiB, busbw(8, MiB, 36e9), 0.19),
        ("gpu_b200:8", {"x": 8}, ("x",), "all_reduce", 128 * MiB, busbw(8, 128 * MiB, 568e9), 0.04),
        ("gpu_b200:8", {"x": 8}, ("x",), "all_reduce", 16384 * MiB, busbw(8, 16384 * MiB, 846e9), 0.18),
        ("gpu_b200:4x8", {"x": 32}, ("x",), "all_reduce", 1 * MiB, busbw(32, MiB, 5.4e9), 0.13),
        ("gpu_b200:4x8", {"x": 32}, ("x",), "all_reduce", 16 * MiB, busbw(32, 16 * MiB, 64e9), 0.21),
        ("gpu_b200:4x8", {"x": 32}, ("x",), "all_reduce", 128 * MiB, busbw(32, 128 * MiB, 198e9), 0.27),
        ("gpu_b200:4x8", {"x": 4, "y": 8}, ("x", "y"), "all_reduce", 4096 * MiB, 22.05e-3, 0.05),
        ("gpu_h100_sxm_80gb:8", {"x": 8}, ("x",), "all_gather", 512e6, 1.5e-3, 0.17),
    ],
)
def test_measured_anchors(text, sizes, axes, kind, bytes, measured, within):
    machine = load_machine(text)
    assert seconds(machine, mesh_of(machine, sizes), kind, axes, bytes) == pytest.approx(measured, rel=within)


def test_open_lines_take_twice_as_long_as_rings():
    ring = slope("tpu_v5e:16x16", {"x": 16, "y": 16}, "all_gather", "y")
    line = slope("tpu_v5e:8x8", {"x": 8, "y": 8}, "all_gather", "y")
    assert line == pytest.approx(2 * ring)
    machine, small = load_machine("tpu_v5e:16x16"), load_machine("tpu_v5e:8x8")
    wide, narrow = mesh_of(machine, {"x": 16, "y": 16}), mesh_of(small, {"x": 8, "y": 8})
    for mesh, which, links in ((wide, machine, 2), (narrow, small, 1)):
        ((_, exchange),) = lines(which, mesh, "all_to_all", ("y",))
        assert exchange == pytest.approx(1 / (4 * links * 45e9))
    (near, _), (far, _) = *lines(machine, wide, "permute", ("y",)), *lines(small, narrow, "permute", ("y",))
    assert near - 3e-6 == pytest.approx(1e-6)
    assert far - 3e-6 == pytest.approx(7e-6)  # the ends of the line


def test_all_to_all_of_a_torus_is_bound_by_its_longest_axis():
    machine = load_machine("tpu_v5p:8x8x16")
    ((_, exchange),) = lines(machine, mesh_of(machine, {"x": 1024}), "all_to_all", ("x",))
    assert exchange == pytest.approx(1 / 4 / (2 * 64 * 90e9))


def test_both_parts_of_a_ring_make_the_ring_again():
    machine = load_machine("tpu_v5e:16x16")
    whole = mesh_of(machine, {"x": 16, "y": 16})
    split = mesh_of(machine, {"x": 16, "y": 4, "z": 4})
    for kind in KINDS:
        assert lines(machine, split, kind, ("y", "z")) == lines(machine, whole, kind, ("y",))
        assert lines(machine, split, kind, ("z", "y")) == lines(machine, whole, kind, ("y",))


def test_two_slices_move_their_share_once():
    machine = load_machine("tpu_v5e:16x16*2")
    mesh = mesh_of(machine, {"x": 2, "y": 256})
    ((_, whole),) = lines(machine, mesh, "all_reduce", ("x", "y"))
    ((_, inside),) = lines(machine, mesh, "all_reduce", ("y",))
    # Two slices of 256 chips with 3.125 GB/s each: twice half the share of one chip.
    assert whole - inside == pytest.approx(2 * 0.5 / 256 / 3.125e9)


def test_two_devices_of_a_chip_share_its_links():
    machine = load_machine("tpu_7x:4x4x4")
    mesh = mesh_of(machine, {"die": 2, "x": 64})
    assert [wire.kind for wire in mesh.wires[0]] == ["die"]
    ((_, alone),) = lines(machine, mesh, "all_gather", ("x",))
    ((_, both),) = lines(machine, mesh, "all_gather", ("die", "x"))
    assert alone == pytest.approx(63 / 64 / (3 * 100e9))
    assert both == pytest.approx(alone / 2 + 0.5 / 600e9)


def test_trees_keep_all_reduce_short_on_many_nodes():
    machine = load_machine("h100:128x8")
    mesh = mesh_of(machine, {"x": 1024})
    assert seconds(machine, mesh, "all_reduce", ("x",), 4096) < 1.2e-3
    assert seconds(machine, mesh, "all_gather", ("x",), 4096) > 3e-3  # NCCL has only the ring for it


def test_host_collectives_are_copies_after_a_rendezvous():
    mesh = mesh_of(CPU, {"x": 2, "y": 4})
    assert seconds(CPU, mesh, "all_gather", ("y",), 1.25e9) == pytest.approx(1 + 1.6e-4)
    assert seconds(CPU, mesh, "all_reduce", ("y",), 1.25e9) == pytest.approx(2 + 1.6e-4)
    assert seconds(CPU, mesh, "all_to_all", ("y",), 1.25e9) == pytest.approx(0.25 + 1.6e-4)
    assert seconds(CPU, mesh, "permute", ("x",), 1.25e9) == pytest.approx(1 + 1.6e-4)


@pytest.mark.parametrize(
    "text", ["tpu_v5e:4x4", "tpu_v5e:16x16*2", "tpu_7x:2x4x4", "h100:4x8", "v100:2x8", "gb200:2x72"]
)
def test_monotone_and_positive_everywhere(text: str):
    machine = load_machine(text)
    for mesh in enumerate_meshes(machine):
        for count in range(1, len(mesh.axes) + 1):
            for axes, kind in itertools.product(itertools.combinations(mesh.axes, count), KINDS):
                times = [seconds(machine, mesh, kind, axes, bytes) for bytes in (0, 1, 1e3, 1e6, 1e9, 1e12)]
                assert times == sorted(times), (mesh, axes, kind)
                assert times[0] == 0 < times[1], (mesh, axes, kind)
                one = seconds(machine, mesh, "all_reduce", axes, 1e9)
                parts = sum(
                    seconds(machine, mesh, half, axes, 1e9) for half in ("all_gather", "reduce_scatter")
                )
                assert one <= parts * 1.0001, (mesh, axes)


def test_one_device_moves_nothing():
    machine = load_machine("tpu_v5e:4x4")
    mesh = mesh_of(machine, {"x": 16, "y": 1})
    assert seconds(machine, mesh, "all_reduce", ("y",), 1e9) == 0
    assert seconds(machine, mesh, "all_reduce", (), 1e9) == 0


def test_wire_bytes_of_the_ring_algorithm():
    assert wire_bytes("all_gather", 4, 100.0) == 75
    assert wire_bytes("reduce_scatter", 4, 100.0) == 75
    assert wire_bytes("all_reduce", 4, 100.0) == 150
    assert wire_bytes("all_to_all", 4, 100.0) == 18.75
    assert wire_bytes("permute", 4, 100.0) == 100
    assert [wire_bytes(kind, 1, 100.0) for kind in KINDS] == [0, 0, 0, 0, 0]


def test_unknown_kind_is_named():
    machine = load_machine("tpu_v5e:4x4")
    with pytest.raises(ValueError, match="'broadcast' is not a collective; the kinds are all_gather, "):
        seconds(machine, mesh_of(machine, {"x": 16}), "broadcast", ("x",), 1.0)


def test_a_call_takes_microseconds():
    machine = load_machine("h100:4x8")
    mesh = mesh_of(machine, {"x": 4, "y": 8})
    best = min(
        timeit.repeat(lambda: seconds(machine, mesh, "all_reduce", ("x", "y"), 1e6), number=1000, repeat=5)
    )
    assert best / 1000 < 50e-6


def test_gpus_on_pcie_take_nccls_two_protocols_there():
    """By hand: 20 us of launch, then the ring; 3 steps of 1.0 us (LL, half the rate) or 5.7 us (Simple)."""
    machine = load_machine("gpu_k80:4")
    mesh = mesh_of(machine, {"x": 4})
    assert lines(machine, mesh, "all_gather", ("x",)) == (
        pytest.approx((20e-6 + 6.6e-6 + 3 * 1.0e-6, 0.75 / 6e9)),
        pytest.approx((20e-6 + 8.4e-6 + 3 * 5.7e-6, 0.75 / 12e9)),
    )


def test_gpus_on_pcie_share_the_card_of_their_node():
    machine = load_machine("gpu_k80:16x4")
    mesh = mesh_of(machine, {"x": 64})
    sent = 2 * 63 / 64 * 1e9
    ring = seconds(machine, mesh, "all_reduce", ("x",), 1e9)
    assert ring == pytest.approx(sent / 7e9, rel=0.01)
