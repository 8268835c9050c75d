"""Rows read of neighbours: what is planned for images split in height and width is what XLA compiles."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from conftest import make_mesh
from jax import lax
from pipeline import graph_of, network_of, node_with

from planner.cost.traffic import finishes
from planner.graph.coarsen import coarsen
from planner.hlo import collectives
from planner.jax_compat import named_sharding
from planner.sharding.strategy import ALL_REDUCE, Strategy, result_spec, spec_of, strategies

SIZES = {"x": 2, "y": 4}
IMAGE = jax.ShapeDtypeStruct((2, 16, 32, 4), jnp.float32)


def conv(side: int, stride: int, padding="SAME"):
    return lambda x, w: lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    ), jax.ShapeDtypeStruct((side, side, 4, 6), jnp.float32)


def image_gradient(function):
    return lambda x, w, dy: jax.linear_transpose(lambda x: function(x, w), x)(dy)[0]


def filter_gradient(function):
    return lambda x, w, dy: jax.linear_transpose(lambda w: function(x, w), w)(dy)[0]


def pool(side: int, stride: int):
    windows = (1, side, side, 1), (1, stride, stride, 1), "SAME"
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *windows)


def planned_and_compiled(function, primitive: str, *args) -> tuple[Counter, Counter]:
    """Kinds and bytes of the collectives of a function of one heavy op, height over x and width over y. An
    array that is summed over one axis after the other counts once."""
    graph, network = graph_of(function, *args), network_of("cpu:8", **SIZES)
    coarse = coarsen(graph)
    node = node_with(graph, coarse, primitive)
    _, height, width, _ = node.inputs[0].dims
    reduced = {factor for total in node.sums for factor in total.reduced}
    split = {height[0]: ("x",), width[0]: ("y",)}
    finish = {axes[0]: ALL_REDUCE for factor, axes in split.items() if factor in reduced}
    strategy = Strategy(split, finish)
    assert strategy in strategies(node, SIZES, stores_state=False)
    mesh, names = make_mesh(**SIZES), {port.value: spec_of(port.dims, strategy) for port in node.inputs}
    shardings = [
        named_sharding(mesh, names.get(leaf.value, ((),) * len(arg.shape)))
        for leaf, arg in zip(graph.arguments, args, strict=True)
    ]
    out = named_sharding(mesh, result_spec(node.outputs[0].dims, strategy))
    program = jax.jit(function, in_shardings=shardings, out_shardings=out).lower(*args).compile()
    planned = finishes(node, primitive, graph, strategy, network)
    compiled = collectives(program.as_text())
    made = Counter((one.kind.removeprefix("collective-").replace("-", "_"), one.bytes) for one in compiled)
    return tuple(
        Counter({what: 1 if what[0] == "all_reduce" else times for what, times in found.items()})
        for found in (Counter((one.kind, one.bytes) for one in planned), made)
    )


@pytest.mark.parametrize("side, stride", [(3, 1), (5, 1), (3, 2), (7, 2), (1, 2), (2, 2)])
@pytest.mark.parametrize("gradient", [None, image_gradient, filter_gradient])
def test_a_convolution_reads_the_planned_rows(side: int, stride: int, gradient):
    function, filters = conv(side, stride)
    args = IMAGE, filters
    if gradient:
        result = jax.eval_shape(function, *args)
        args, function = (*args, result), gradient(function)
    planned, compiled = planned_and_compiled(function, "conv_general_dilated", *args)
    assert bool(planned) == (side > stride or gradient is filter_gradient)
    assert planned == compiled


@pytest.mark.parametrize("side, stride", [(2, 2), (3, 2), (3, 1)])
def test_pooling_reads_the_planned_rows(side: int, stride: int):
    planned, compiled = planned_and_compiled(pool(side, stride), "reduce_window_max", IMAGE)
    assert bool(planned) == (side > stride)
    assert planned == compiled


def test_the_gradient_of_pooling_without_overlap_reads_nothing():
    def gradient(x, dy):
        return jax.vjp(pool(2, 2), x)[1](dy)[0]

    result = jax.eval_shape(pool(2, 2), IMAGE)
    planned, compiled = planned_and_compiled(gradient, "select_and_scatter_add", IMAGE, result)
    assert planned == compiled == Counter()


def test_a_part_is_not_smaller_than_what_its_neighbours_read_of_it():
    function, filters = conv(7, 1)
    small = jax.ShapeDtypeStruct((2, 8, 8, 4), jnp.float32)
    graph = graph_of(function, small, filters)
    node = node_with(graph, coarsen(graph), "conv_general_dilated")
    _, height, _, _ = node.inputs[0].dims
    ways = {len(s.axes(height[0])) for s in strategies(node, {"x": 2, "y": 2}, stores_state=False)}
    assert ways == {0, 1}  # three rows of the neighbour's four are read, of two rows there are not three
