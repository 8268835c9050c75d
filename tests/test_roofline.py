"""Seconds of local work, against figures worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from pipeline import graph_of, node_with
from small_steps import f32

from meshes.machine import load_machine
from planner.cost.roofline import work_seconds
from planner.graph.coarsen import coarsen
from planner.sharding.strategy import parse

SIZES = {"x": 4, "y": 2}
V5E = load_machine("tpu_v5e:2x4")
PER_RESULT = "matmul_results_per_s"
NUMBERS = {key: value for key, value in V5E.chip.numbers.items() if key != PER_RESULT}
# Round figures: of 197 TFLOP/s matmuls reach half, 1 GB/s of memory, tiles of 128, no overhead.
PLAIN = dataclasses.replace(
    V5E,
    chip=dataclasses.replace(V5E.chip, numbers=NUMBERS),
    hbm_bandwidth=1e9,
    matmul_efficiency=0.5,
    overhead_seconds=0.0,
    hbm_efficiency=1.0,
)


def seconds(step, args, primitive: str, strategies: list[str], machine=PLAIN) -> list[float]:
    """Of the only node that holds this primitive. Strategies name its factors f0, f1, ... in their order."""
    graph = graph_of(step, *args)
    node = node_with(graph, coarsen(graph), primitive)
    return work_seconds(node, primitive, graph, [parse(text) for text in strategies], machine, SIZES)


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def test_a_large_matmul_takes_its_flops_at_the_rate_matmuls_reach():
    whole, split, replicated = seconds(
        lambda a, b: a @ b,
        (bf16(1024, 2048), bf16(2048, 512)),
        "dot_general",
        ["{}", "{x: f0, y: f1}", "{x: f2}"],
    )
    machine_rate = 197e12 * 0.5
    flops = 2 * 1024 * 2048 * 512
    moved = 2 * (1024 * 2048 + 2048 * 512 + 1024 * 512)
    assert whole == pytest.approx(max(flops / machine_rate, moved / 1e9))
    fast = dataclasses.replace(PLAIN, hbm_bandwidth=1e15)
    args = ((bf16(1024, 2048), bf16(2048, 512)), "dot_general", ["{}", "{x: f0, y: f1}", "{x: f2}"])
    whole, split, replicated = seconds(lambda a, b: a @ b, *args, machine=fast)
    assert whole == pytest.approx(flops / machine_rate)
    assert split == pytest.approx(whole / 8)
    assert replicated == pytest.approx(whole / 4)


def test_a_small_matmul_pays_for_whole_tiles():
    """8 x 16 by 16 x 8: the contraction fills an eighth of a tile of 128, the columns a sixteenth, the rows
    8 of 8."""
    fast = dataclasses.replace(PLAIN, hbm_bandwidth=1e18)
    (taken,) = seconds(lambda a, b: a @ b, (bf16(8, 16), bf16(16, 8)), "dot_general", ["{}"], machine=fast)
    assert taken == pytest.approx(2 * 8 * 16 * 8 / (197e12 * 0.5) * 8 * 16)


def test_results_leave_a_matrix_unit_no_faster_however_short_the_contraction():
    """1.54e11 results a second, an 8 x 128 tile of them at a time: 64 columns fill the lanes of whole tiles
    only where rows may lie along the lanes instead, which those of a convolution may not."""
    fast = dataclasses.replace(PLAIN, chip=V5E.chip, hbm_bandwidth=1e18)
    args = ((bf16(1024, 8), bf16(8, 64)), "dot_general", ["{}", "{x: f0}", "{y: f1>+}"])
    whole, rows, depth = seconds(lambda a, b: a @ b, *args, machine=fast)
    assert whole == pytest.approx(1024 * 64 / 1.54e11)
    assert rows == pytest.approx(whole / 4)
    assert depth == pytest.approx(whole)

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    args = ((bf16(4, 16, 16, 8), bf16(1, 1, 8, 64)), "conv_general_dilated", ["{}"])
    (taken,) = seconds(convolve, *args, machine=fast)
    assert taken == pytest.approx(1024 * 128 / 1.54e11)


def test_splitting_finer_than_a_tile_gains_nothing():
    fast = dataclasses.replace(PLAIN, hbm_bandwidth=1e18)
    args = ((bf16(1024, 128), bf16(128, 1024)), "dot_general", ["{}", "{x: f1>+}"])
    whole, split = seconds(lambda a, b: a @ b, *args, machine=fast)
    assert split == pytest.approx(whole)


def test_a_machine_without_a_matrix_unit_has_no_tiles():
    cpu = dataclasses.replace(PLAIN, mxu_dim=0, hbm_bandwidth=1e18)
    (taken,) = seconds(lambda a, b: a @ b, (bf16(8, 16), bf16(16, 8)), "dot_general", ["{}"], machine=cpu)
    assert taken == pytest.approx(2 * 8 * 16 * 8 / (197e12 * 0.5))


def test_a_block_reads_its_inputs_and_writes_its_outputs_once():
    def chain(x, y):
        return jnp.tanh(jnp.sin(x) * y + x)

    whole, split = seconds(chain, (f32(64, 128), f32(64, 128)), "tanh", ["{}", "{x: f0, y: f1}"])
    assert whole == pytest.approx(3 * 4 * 64 * 128 / 1e9)
    assert split == pytest.approx(whole / 8)


def test_a_lookup_reads_only_the_rows_it_takes():
    def look_up(table, rows):
        return jnp.take(table, rows, axis=0, mode="clip")

    args = (f32(100_000, 64), jax.ShapeDtypeStruct((10,), jnp.int32))
    graph = graph_of(look_up, *args)
    node = node_with(graph, coarsen(graph), "gather")
    (taken,) = work_seconds(node, "gather", graph, [parse("{}")], PLAIN, SIZES)
    assert taken == pytest.approx((4 * 10 + 2 * 4 * 10 * 64) / 1e9)


def test_every_run_of_a_loop_is_paid_with_its_overhead():
    def step(c, w):
        return jax.lax.scan(lambda c, _: (c @ w, None), c, length=7)[0]

    slow = dataclasses.replace(PLAIN, overhead_seconds=1.0)
    (taken,) = seconds(step, (bf16(8, 8), bf16(8, 8)), "dot_general", ["{}"], machine=slow)
    assert taken == pytest.approx(7 * (1.0 + 3 * 2 * 64 / 1e9))


@pytest.mark.parametrize("primitive", ["loop_carry", "scan_slice", "scan_stack"])
def test_the_borders_of_loops_take_no_time(primitive):
    def step(c, xs):
        return jax.lax.scan(lambda c, x: (c @ x, c @ c), c, xs)

    assert seconds(step, (f32(8, 8), f32(5, 8, 8)), primitive, ["{}"]) == [0.0]
