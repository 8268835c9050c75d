"""What the compilers of CPUs and TPUs make of planned collectives, as the cost model says it."""

import math

import jax
import jax.numpy as jnp
import pytest
from pipeline import graph_of, network_of, stages_of

import planner
from planner.cost.backend import (
    PRODUCTS,
    Partial,
    cpu_sums,
    rounded_reads,
    tile_orders,
    tpu_sums,
    without_zeros,
)
from planner.cost.traffic import row_of, way_made
from planner.graph.graph import Value
from planner.planning import Decided, transfers
from planner.sharding.strategy import ALL_REDUCE, Strategy


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def rounded(step, *args) -> set[tuple[str, int]]:
    """The uses (primitive, operand) that a TPU rounds."""
    graph = graph_of(step, *args)
    primitive = {op.id: op.primitive for op in graph.ops}
    return {(primitive[op], k) for op, k in rounded_reads(graph, "tpu")}


def test_a_tpu_rounds_what_only_matmuls_read():
    assert rounded(lambda a, b: a @ b, f32(4, 8), f32(8, 4)) == {("dot_general", 0), ("dot_general", 1)}
    assert rounded(lambda a, b: (a * 2) @ b, f32(4, 8), f32(8, 4)) == {("dot_general", 0), ("dot_general", 1)}
    half = jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)
    assert rounded(lambda a, b: a @ b, half, half.update(shape=(4, 8))) == set()
    assert not rounded_reads(graph_of(lambda a, b: a @ b, f32(4, 8), f32(8, 4)), "gpu")


def test_rounding_passes_through_what_only_moves_an_array():
    def scanned(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    assert ("scan_slice", 0) in rounded(scanned, f32(3, 8, 8), f32(4, 8))
    assert ("transpose", 0) in rounded(lambda a, b: a @ b.T, f32(4, 8), f32(4, 8))


def test_rounding_by_the_program_counts_too():
    def scanned(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.astype(x.dtype)), None), x, ws)[0]

    half = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    assert rounded(scanned, f32(3, 8, 8), half) == {("scan_slice", 0), ("convert_element_type", 0)}


def test_what_is_kept_too_is_not_rounded_on_the_way():
    def step(a, b):
        turned = b.T
        return a @ turned, turned

    found = rounded(step, f32(4, 8), f32(4, 8))
    assert ("dot_general", 1) in found
    assert ("transpose", 0) not in found


def test_a_copy_is_rounded_if_all_who_read_it_round():
    def step(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)))(w)

    network = network_of("tpu_v5p:2x2x2", x=8)
    stages = stages_of(step, f32(64, 64), f32(64, 64), network=network)
    copies = [node.id for node in stages.coarse.nodes if node.kind == "copy"]
    assert copies
    assert all((copy, 0) in stages.tables.rounded for copy in copies)


@pytest.mark.parametrize(
    ("machine", "extent", "kind"),
    [
        ("tpu_v5e:4x4", 2048, "all_gather"),
        ("tpu_v5e:4x4", 1024, "all_reduce"),
        ("tpu_v5e:4x4", 3072, "all_reduce"),
        ("gpu_h100_sxm_80gb:2x8", 1024, "all_gather"),
    ],
)
def test_a_tpu_gathers_vectors_by_rows(machine, extent, kind):
    """As compiled: f32[2048] over 16 devices is gathered, f32[1024] and f32[3072] are summed."""
    vector, matrix = Value(0, (extent,), "float32", 4), Value(0, (extent, 1), "float32", 4)
    network = network_of(machine, x=16)
    written, seconds = network.move("all_gather", ("x",), vector.bytes, row_of(vector))
    assert (written, seconds) == (kind, network.seconds(kind, ("x",), vector.bytes))
    assert network.move("all_gather", ("x",), matrix.bytes, row_of(matrix))[0] == "all_gather"


def test_sums_that_are_only_added_are_finished_as_one():
    """A value that three matmuls read: the three partial gradients are added, then finished."""

    def step(x, q, k, v):
        def loss(x):
            return jnp.sum(jnp.tanh(x @ q) * jnp.tanh(x @ k) * jnp.tanh(x @ v))

        return jax.grad(loss)(jnp.tanh(x))

    shapes = f32(512, 256), f32(256, 1024), f32(256, 1024), f32(256, 1024)
    stages = stages_of(step, *shapes, network=network_of("tpu_v5e:4x4", x=4, y=4))
    dots = [node for node in stages.coarse.nodes if node.kind == "op" and node.sums]
    first, second, third = [node.id for node in dots[3:]]
    assert dict(stages.tables.joined) == {second: first, third: second}
    assert not stages_of(step, *shapes, network=network_of("cpu:8", x=8)).tables.joined

    choice = [0] * len(stages.coarse.nodes)
    for node in stages.coarse.nodes:
        if node.id in (first, second, third):
            (reduced,) = node.sums[0].reduced
            alike = Strategy({reduced: ("y",)}, {"y": ALL_REDUCE})
            choice[node.id] = stages.tables.nodes[node.id].strategies.index(alike)
    decided = Decided(stages.graph, stages.coarse, stages.tables, choice)
    assert [t.axes for t in transfers(decided) if t.kind == "all_reduce"] == [("y",)]
    choice[second] = 0
    apart = Decided(stages.graph, stages.coarse, stages.tables, choice)
    assert len([t for t in transfers(apart) if t.kind == "all_reduce"]) == 2


def written(shape, places, *, itemsize=4, sizes=None, hiding=0.0, primitive="dot_general", tiled=None):
    """(kind, axes) of what a TPU makes of a sum over `places`; on 4 x 4 devices if nothing else is said."""
    size = math.prod(shape) * itemsize
    led, tiles = primitive in PRODUCTS, tile_orders(primitive, len(shape), tiled)
    partial = Partial(shape, itemsize, size, frozenset({0, 1}), hiding, (), led, tiles)
    return [(kind, axes) for kind, axes, _, _ in tpu_sums(partial, places, sizes or {"x": 4, "y": 4}, 90e9)]


@pytest.mark.parametrize(
    ("group", "shape", "dim", "itemsize", "kept"),
    [
        (4, (32, 128), 0, 4, False),
        (4, (32, 256), 0, 4, True),
        (4, (64, 16), 0, 4, True),
        (4, (256, 32), 0, 4, False),
        (4, (512, 32), 0, 4, True),
        (4, (512, 32), 0, 2, False),
        (2, (1024, 64), 0, 2, True),
        (4, (64, 256), 1, 4, False),
        (4, (256, 32), 1, 4, True),
        (8, (384, 64), 1, 4, False),
        (8, (64, 96), 1, 2, True),
        (8, (768, 64), 0, 4, False),
        (4, (32, 384), 0, 4, False),
        (4, (32, 256), 0, 2, True),
        (4, (64, 128), 0, 2, True),
        (4, (1, 256, 512), 1, 2, False),
        (4, (2, 256, 512), 1, 2, True),
        (2, (16, 1024, 768), 2, 2, False),
    ],
)
def test_a_tpu_scatters_even_numbers_of_tiles(group, shape, dim, itemsize, kept):
    """As compiled: the sum of a matmul's results of this shape over a part of 16 devices."""
    sizes = {"x": group, "y": 16 // group}
    found = written(shape, {dim: ("x",)}, itemsize=itemsize, sizes=sizes)
    assert found == [("reduce_scatter" if kept else "all_reduce", ("x",))]


@pytest.mark.parametrize(
    ("group", "shape", "dim", "itemsize", "tiled", "kept"),
    [
        (4, (3, 3, 32, 128), 2, 4, (2, 3), True),
        (4, (3, 3, 16, 128), 2, 4, (2, 3), False),
        (4, (3, 3, 32, 256), 2, 2, (2, 3), False),
        (4, (3, 3, 64, 256), 2, 2, (2, 3), True),
        (4, (1, 3, 64, 128), 2, 4, (2, 3), True),
        (4, (1, 1, 256, 512), 2, 4, (2, 3), False),
        (4, (1, 1, 64, 512), 3, 4, (2, 3), True),
        (2, (1, 1, 256, 128), 3, 4, (2, 3), False),
        (4, (16, 16, 16, 512), 3, 4, (0, 3), True),
        (8, (8, 32, 32, 16), 3, 4, (0, 3), False),
        (8, (8, 32, 32, 64), 3, 4, (0, 3), False),
        (4, (64, 56, 56, 64), 3, 2, (0, 3), True),
        (4, (64, 28, 28, 128), 3, 2, (0, 3), True),
        (4, (64, 14, 14, 1024), 3, 2, (0, 3), True),
    ],
)
def test_a_tpu_scatters_the_sums_of_convolutions(group, shape, dim, itemsize, tiled, kept):
    """As compiled: kernels' gradients, and results of convolutions."""
    sizes, conv = {"x": group, "y": 16 // group}, "conv_general_dilated"
    found = written(shape, {dim: ("x",)}, itemsize=itemsize, sizes=sizes, primitive=conv, tiled=tiled)
    assert found == [("reduce_scatter" if kept else "all_reduce", ("x",))]


def test_what_a_scatter_adds_up_lies_as_it_stands():
    """As compiled on 4 x 4 devices: the gradients of an embedding and of the same weights in a matmul."""

    def sums(primitive):
        return written((50304, 192), {1: ("x",)}, itemsize=2, primitive=primitive)

    assert sums("scatter-add") == [("all_reduce", ("x",))]
    assert sums("dot_general") == [("reduce_scatter", ("x",))]


def test_a_tpu_scatters_over_no_whole_slice_and_onto_no_two_dims():
    both = ("x", "y")
    assert written((768, 768), {0: both}, primitive="reduce_sum") == [("all_reduce", both)]
    assert written((768, 768), {0: ("x",), ALL_REDUCE: ("y",)}) == [
        ("reduce_scatter", ("x",)),
        ("all_reduce", ("y",)),
    ]
    assert written((768, 768), {0: ("x",), 1: ("y",)}, primitive="reduce_sum") == [("all_reduce", both)]
    assert written((768, 768), {ALL_REDUCE: both}) == [("all_reduce", both)]


@pytest.mark.parametrize(
    ("count", "itemsize", "rows"), [(16, 2, 512), (8, 2, 1024), (4, 2, 2048), (8, 4, 2048)]
)
def test_a_tpu_loops_where_a_matmul_hides_the_permutes(count, itemsize, rows):
    """As compiled for v5e, [rows, 256] x [rows, 256] on each device: a loop from so many rows on, and none
    with half as many. It sends one part more than there are devices."""

    def found(rows):
        size, sizes = 256 * 256 * itemsize, {"x": count, "y": 16 // count}
        hiding = 2 * rows * 256 * 256 / 197e12
        partial = Partial((256, 256), itemsize, size, frozenset({0, 1}), hiding, (), True, ((0, 1),))
        return list(tpu_sums(partial, {0: ("x",)}, sizes, 90e9))

    assert found(rows) == [("reduce_scatter", ("x",), 256 * 256 * itemsize, (count + 1) / (count - 1))]
    (half,) = found(rows // 2)
    assert half[-1] == 1
    assert without_zeros(found(rows)[0][-1], count) == (1 if count == 4 else (count + 1) / (count - 1))


def test_loops_over_four_devices_pass_the_zeros_of_equal_sums_once():
    """As compiled for v5e:4x4: eight sums of one shape pass 26 parts of four, not 40."""

    def step(x, first, second):
        return jnp.tanh(x @ first) + jnp.tanh(x @ second)

    shapes = f32(4096, 65536), f32(65536, 256), f32(65536, 256)
    stages = stages_of(step, *shapes, network=network_of("tpu_v5e:4x4", x=4, y=4))
    choice = [0] * len(stages.coarse.nodes)
    for node in stages.coarse.nodes:
        if node.kind == "op" and node.sums:
            rows, _ = (factor for dim in node.outputs[0].dims for factor in dim)
            (reduced,) = node.sums[0].reduced
            looped = Strategy({rows: ("x",), reduced: ("y",)}, {"y": 1})
            choice[node.id] = stages.tables.nodes[node.id].strategies.index(looped)
    found = [
        t
        for t in transfers(Decided(stages.graph, stages.coarse, stages.tables, choice))
        if t.kind == "reduce_scatter"
    ]
    assert [t.ring for t in found] == [5 / 3, 1.0]


@pytest.mark.parametrize(
    ("machine", "sizes", "axes", "loops"),
    [
        ("tpu_v5p:2x2x2", {"x": 4, "y": 2}, ("x",), False),
        ("tpu_v5p:2x2x2", {"x": 2, "y": 4}, ("y",), False),
        ("tpu_v5p:2x2x2", {"x": 2, "y": 2, "z": 2}, ("x", "y"), False),
        ("tpu_v5p:2x2x2", {"x": 8}, ("x",), True),
        ("tpu_v5p:2x2x4", {"x": 4, "y": 4}, ("x",), True),
        ("tpu_v5p:2x2x4", {"x": 4, "y": 4}, ("y",), False),
        ("tpu_v5p:2x2x4", {"x": 8, "y": 2}, ("x",), True),
        ("tpu_v5p:4x4x4", {"x": 4, "y": 16}, ("x",), True),
        ("tpu_v5e:4x4", {"x": 4, "y": 4}, ("y",), True),
        ("tpu_v5e:2x2", {"x": 4}, ("x",), True),
    ],
)
def test_no_loop_goes_round_a_square_of_four_devices(machine, sizes, axes, loops):
    """As compiled for each of them: [16384, 256] x [16384, 256] on each device, scattered over the axes."""
    squares = network_of(machine, **sizes).squares
    hiding = 2 * 16384 * 256 * 256 / 459e12
    partial = Partial((256, 256), 2, 256 * 256 * 2, frozenset({0, 1}), hiding, (), True, ((0, 1),), squares)
    ((kind, _, _, ring),) = tpu_sums(partial, {0: axes}, sizes, 180e9)
    assert (kind, ring > 1) == ("reduce_scatter", loops)


def test_a_matmul_is_led_to_what_a_tpu_would_not_do_by_itself():
    """As compiled on 4 x 4 devices: constraints in turn keep two reduce-scatters apart, make one over all
    devices of two, and keep the parts of a sum off axes that are idle."""
    both = ("x", "y")
    for places in ({0: both}, {0: ("y",), 1: ("x",)}):
        found = written((768, 3072), places, hiding=1e-9)
        assert found == [("reduce_scatter", ("x",)), ("reduce_scatter", ("y",))]
    network = network_of("tpu_v5e:4x4", x=4, y=4)
    stages = stages_of(lambda a, b: a @ b, f32(768, 1024), f32(1024, 3072), network=network)
    (node,) = [node for node in stages.coarse.nodes if node.sums]
    (reduced,) = node.sums[0].reduced

    def way(split, finish):
        strategy = Strategy({reduced: split}, finish)
        return way_made(node, "dot_general", stages.graph, strategy, network)

    assert way(both, {"x": 0, "y": 0}) == ((("x",), ()),)
    assert way(both, {"x": 1, "y": 0}) == (((), ("x",)),)
    assert way(("x",), {"x": 0}) == (((), ()),)
    assert way(both, {"x": ALL_REDUCE, "y": ALL_REDUCE}) == ()


def test_a_cpu_sums_a_scatter_dim_by_dim_and_the_whole_of_what_is_scattered_onto_two_dims():
    sizes, x, y = {"x": 4, "y": 2}, ("x",), ("y",)
    both = {0: ("x", "y")}
    assert list(cpu_sums(64.0, both, [("x", "y")], sizes, scatter=False)) == [
        ("reduce_scatter", ("x", "y"), 64.0, 1.0)
    ]
    each = [("all_reduce", x, 64.0, 1.0), ("all_reduce", y, 64.0, 1.0)]
    assert list(cpu_sums(64.0, both, [x, y], sizes, scatter=True)) == each
    assert list(cpu_sums(64.0, {0: x, 1: y}, [x, y], sizes, scatter=False)) == each
    assert list(cpu_sums(64.0, {0: x, ALL_REDUCE: y}, [x, y], sizes, scatter=False)) == [
        ("reduce_scatter", x, 64.0, 1.0),
        ("all_reduce", y, 16.0, 1.0),
    ]


def test_a_cpu_moves_bfloat16_as_float32():
    def step(params, x):
        def loss(params):
            return jnp.mean(jnp.square(jnp.tanh(x @ params["w"] + params["b"]).astype(jnp.float32)))

        return jax.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), params, jax.grad(loss)(params))

    def half(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    args = {"w": half(64, 64), "b": half(64)}, half(32, 64)
    plan = planner.plan(step, *args, machine="cpu:8", mesh={"x": 8}, schemes=["fsdp"])
    assert sorted(c.bytes for c in plan.collectives) == [4 * 64, 4 * 64, 4 * 64 * 64, 4 * 64 * 64]
    found = planner.verify(plan, step, *args)
    assert found.wire.compiled == found.wire.planned == pytest.approx(plan.wire_bytes)
    assert found.flags == ()


@pytest.mark.parametrize(
    ("machine", "sizes", "kinds"),
    [
        ("tpu_v5e:4x8", {"x": 32}, [("all_gather", ("x",))]),
        ("tpu_v5e:8x8", {"x": 64}, [("all_reduce", ("x",))]),
        ("tpu_v5p:4x4x4", {"x": 4, "y": 16}, [("all_gather", ("y",)), ("all_gather", ("x",))]),
        ("gpu_h100_sxm_80gb:8x8", {"x": 8, "y": 8}, [("all_gather", ("x", "y"))]),
    ],
)
def test_a_large_slice_gathers_over_parts_of_it_only(machine, sizes, kinds):
    network = network_of(machine, **sizes)
    axes = tuple(sizes)
    steps = list(network.reshard((axes, ()), ((), ())))
    assert [(network.move(step.kind, step.axes, 1e6, 0)[0], step.axes) for step in steps] == kinds
