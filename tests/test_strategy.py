"""Strategies: all there are, each once, each even; what they make of a node's values."""

import itertools

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline import graph_of, node_with
from small_steps import adam_args, adam_step, f32

from planner.graph.coarsen import Node, Port, Sum, coarsen
from planner.sharding.spec import divides
from planner.sharding.strategy import ALL_REDUCE, Strategy, parse, result_spec, show, spec_of, strategies

I, J, K = ("i",), ("j",), ("k",)


def matmul_node(i: int = 8, j: int = 8, k: int = 8) -> Node:
    """i k, k j -> i j."""
    return Node(
        id=0,
        kind="op",
        ops=(0,),
        sizes=(("i", i), ("k", k), ("j", j)),
        splittable=("i", "k", "j"),
        labels=(("i", "sample"), ("k", "parameter"), ("j", "parameter")),
        inputs=(Port(0, (I, K), 0, 0, 1.0), Port(1, (K, J), 0, 0, 1.0)),
        outputs=(Port(2, (I, J), 0, 1, 1.0),),
        inner=(),
        sums=(Sum(2, (I, J), ("k",), 1.0),),
        flops=2.0 * i * j * k,
        repeat=1.0,
        position=0,
    )


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        # nothing, i, j, and k finished in three ways: an all-reduce, or scattered onto i or j
        ({"x": 2}, 6),
        ({"x": 2, "y": 2}, 6**2),
        ({"x": 2, "y": 2, "z": 2}, 6**3),
    ],
)
def test_the_strategies_of_a_matmul(sizes, count):
    found = strategies(matmul_node(), sizes, False)
    assert len(found) == count
    assert found[0] == Strategy({}, {})
    assert len({show(s) for s in found}) == count


def test_strategies_that_would_not_divide_are_left_out():
    sizes = {"x": 4, "y": 4}
    told = {show(s) for s in strategies(matmul_node(i=4, j=16, k=6), sizes, False)}
    # k = 6 cannot be cut by 4; i = 4 takes one axis; j = 16 takes both.
    assert told == {
        "{}",
        "{x: i}",
        "{y: i}",
        "{x: j}",
        "{y: j}",
        "{x: i, y: j}",
        "{x: j, y: i}",
        "{x: j, y: j}",
    }


def test_a_scatter_must_divide_what_is_left_of_the_dim():
    sizes = {"x": 4, "y": 4}
    told = {show(s) for s in strategies(matmul_node(i=4, j=4, k=16), sizes, False)}
    assert "{x: k>0}" in told
    assert "{x: i, y: k>1}" in told
    assert "{x: i, y: k>0}" not in told
    assert "{x: k>0, y: k>1}" in told
    assert "{x: k>0, y: k>0}" not in told


def all_nodes() -> list[Node]:
    graph = graph_of(adam_step, *adam_args(batch=8, inputs=4, hidden=12, outputs=6))
    return list(coarsen(graph).nodes)


@pytest.mark.parametrize(
    "sizes", [{"x": 8}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2}, {"x": 3, "y": 2}], ids=str
)
def test_every_strategy_divides_and_comes_once(sizes):
    for node in all_nodes():
        extents = dict(node.sizes)
        found = strategies(node, sizes, node.kind == "leaf")
        assert len({(show(s)) for s in found}) == len(found)
        for strategy in found:
            used = [axis for axes in strategy.split.values() for axis in axes]
            assert len(set(used)) == len(used)
            assert set(strategy.split) <= set(node.splittable)
            for port in node.inputs:
                shape = tuple(extents[dim[0]] if dim else 1 for dim in port.dims)
                assert divides(spec_of(port.dims, strategy), shape, sizes)
            for port in node.outputs:
                shape = tuple(extents[dim[0]] if dim else 1 for dim in port.dims)
                assert divides(result_spec(port.dims, strategy), shape, sizes)


def test_nothing_even_is_left_out():
    """Of a leaf: every way to lay the axes over the dims, in both orders of the mesh."""
    node = next(
        node for node in all_nodes() if node.kind == "leaf" and dict(node.sizes) == {"f0": 4, "f1": 12}
    )
    sizes = {"x": 2, "y": 2}
    wanted = set()
    for places in itertools.product((None, 0, 1), repeat=2):
        dims = [tuple(axis for axis, at in zip(sizes, places, strict=True) if at == d) for d in range(2)]
        wanted |= {tuple(dims), tuple(dim[::-1] for dim in dims)}
    wanted = {spec for spec in wanted if divides(spec, (4, 12), sizes)}
    assert {spec_of(node.outputs[0].dims, s) for s in strategies(node, sizes, True)} == wanted


def test_both_orders_only_where_parameters_live():
    sizes = {"x": 2, "y": 2}
    (node,) = [n for n in coarsen(graph_of(lambda w: w * 2.0, f32(8))).nodes if n.kind == "block"]
    one_order = [show(s) for s in strategies(node, sizes, False)]
    both = [show(s) for s in strategies(node, sizes, True)]
    assert one_order == ["{}", "{y: f0}", "{x: f0}", "{x: f0, y: f0}"]
    assert both == ["{}", "{y: f0}", "{x: f0}", "{x: f0, y: f0}", "{y: f0, x: f0}"]


def test_sums_inside_a_block_end_in_an_all_reduce():
    graph = graph_of(lambda x: (x * x).sum(axis=1), f32(8, 16))
    node = node_with(graph, coarsen(graph), "reduce_sum")
    assert node.kind == "block"
    assert all(set(s.finish.values()) <= {ALL_REDUCE} for s in strategies(node, {"x": 2}, False))
    assert len(strategies(node, {"x": 2}, False)) == 3


def test_a_result_is_scattered_after_the_axes_that_split_it():
    strategy = parse("{x: i, y: k>0, z: k>1}")
    assert spec_of((I, K), strategy) == (("x",), ("y", "z"))
    assert spec_of((K, J), strategy) == (("y", "z"), ())
    assert result_spec((I, J), strategy) == (("x", "y"), ("z",))
    assert result_spec((I, ()), parse("{x: i, y: k>+}")) == (("x",), ())


@st.composite
def drawn_strategies(draw):
    split, finish = {}, {}
    for axis in draw(st.permutations(("x", "y", "z"))):
        factor = draw(st.sampled_from((None, "a", "b", "f0", "f11")))
        if factor is not None:
            split[factor] = (*split.get(factor, ()), axis)
            place = draw(st.sampled_from((None, ALL_REDUCE, 0, 1, 2)))
            if place is not None:
                finish[axis] = place
    return Strategy(split, finish)


@given(drawn_strategies())
def test_strategies_print_and_parse(strategy):
    assert parse(show(strategy)) == strategy


@pytest.mark.parametrize("text", ["", "x: b", "{x: b", "x: b}"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a strategy; write it as \{x: b, y: k>0\}\."):
        parse(text)


def test_the_factors_of_a_real_matmul_are_those_of_its_rule():
    graph = graph_of(lambda a, b: jnp.dot(a, b), f32(8, 4), f32(4, 6))
    node = node_with(graph, coarsen(graph), "dot_general")
    assert (len(node.splittable), node.flops) == (3, 2.0 * 8 * 4 * 6)
    assert len(strategies(node, {"x": 2}, False)) == 6
