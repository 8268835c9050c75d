"""Coarsening: which ops share a node, what a node reads and leaves, and for how long."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from pipeline import graph_of, node_with, primitives
from small_steps import adam_args, adam_step, f32, sgd_args, sgd_step
from test_trace import NESTED, SCANNED, nested, scanned

import models
from planner.graph.coarsen import Coarse, Node, coarsen
from planner.graph.graph import Graph
from planner.training import abstract_state

STEPS = {
    "sgd": (sgd_step, sgd_args()),
    "adam": (adam_step, adam_args()),
    "scan": (scanned, SCANNED),
    "nested": (nested, NESTED),
}


def both(step, *args) -> tuple[Graph, Coarse]:
    graph = graph_of(step, *args)
    return graph, coarsen(graph)


def of_kind(coarse: Coarse, kind: str) -> list[Node]:
    return [node for node in coarse.nodes if node.kind == kind]


def test_an_element_wise_chain_with_its_reductions_is_one_block():
    def softmax(x):
        e = jnp.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    graph, coarse = both(softmax, f32(8, 16))
    (block,) = of_kind(coarse, "block")
    assert len(block.ops) == len(graph.ops)
    assert [size for _, size in block.sizes] == [8, 16]
    assert [sum_.reduced for sum_ in block.sums] == [("f1",), ("f1",)]
    assert len(block.inputs) == len(block.outputs) == 1


def test_heavy_ops_are_nodes_by_themselves_and_part_the_blocks():
    def two_layers(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    graph, coarse = both(two_layers, f32(8, 4), f32(4, 4))
    assert [primitives(graph, node) for node in coarse.nodes if node.ops] == [
        ["dot_general"],
        ["tanh"],
        ["dot_general"],
        ["tanh"],
    ]


def test_the_backward_block_is_not_the_forward_block_it_reads_from():
    graph, coarse = both(sgd_step, *sgd_args())
    forward, backward = node_with(graph, coarse, "max"), node_with(graph, coarse, "select_n")
    assert forward.id != backward.id
    assert {port.value for port in backward.inputs} & {port.value for port in forward.inputs}


def test_what_only_reads_parameters_goes_with_the_update_that_uses_it():
    """The decay of a moment is computed where the gradient arrives, not at the start of the step."""
    graph, coarse = both(adam_step, *adam_args())
    updates = [node for node in of_kind(coarse, "block") if "sqrt" in primitives(graph, node)]
    assert len(updates) == 2
    for update in updates:
        assert Counter(primitives(graph, update)) == {
            "transpose": 1, "mul": 6, "add": 3, "sqrt": 1, "div": 1, "sub": 1,
        }  # fmt: skip
        gradient = min(port.first for port in update.inputs)
        assert all(port.first >= gradient > 10 for port in update.inputs)
        shapes = {graph.values[port.value].shape for port in update.inputs}
        assert len(update.inputs) == 4  # gradient, both moments, parameter
        assert len({tuple(sorted(shape)) for shape in shapes}) == 1
    assert not any("mul" in primitives(graph, n) for n in of_kind(coarse, "block") if not n.inputs)


def users_of(coarse: Coarse, node: Node) -> list[Node]:
    return [coarse.nodes[link.user] for link in coarse.links if link.maker == node.id]


def test_a_value_that_two_heavy_ops_read_has_a_copy():
    graph, coarse = both(sgd_step, *sgd_args())
    readers: Counter[int] = Counter()
    for op in graph.ops:
        if not op.light:
            readers.update({value for value in op.operands if value is not None})
    several = {value for value, count in readers.items() if count > 1}
    read = {copy.id: users_of(coarse, copy) for copy in of_kind(coarse, "copy")}
    copies = [copy for copy in of_kind(coarse, "copy") if read[copy.id][0].kind == "op"]
    assert sorted(copy.outputs[0].value for copy in copies) == sorted(several)
    for copy in copies:
        users = read[copy.id]
        assert [user.kind for user in users] == ["op"] * readers[copy.outputs[0].value]
        (to_copy,) = [link for link in coarse.links if link.user == copy.id]
        assert coarse.home[copy.outputs[0].value] == (to_copy.maker, to_copy.out)
        assert copy.inputs[0].first == min(user.position for user in users)


def test_a_value_that_two_blocks_read_has_a_copy():
    """relu's input: the forward pass reads it, and the backward pass to know where it was positive."""
    graph, coarse = both(sgd_step, *sgd_args())
    hidden = node_with(graph, coarse, "max").inputs[0].value
    (copy,) = [copy for copy in of_kind(coarse, "copy") if copy.outputs[0].value == hidden]
    users = users_of(coarse, copy)
    assert [user.kind for user in users] == ["block"] * 2
    assert [set(primitives(graph, user)) & {"max", "select_n"} for user in users] == [{"max"}, {"select_n"}]


def test_what_only_one_block_reads_has_no_copy():
    _, coarse = both(sgd_step, *sgd_args())
    for link in coarse.links:
        if coarse.nodes[link.user].kind == "copy":
            assert len(users_of(coarse, coarse.nodes[link.user])) > 1


@pytest.mark.parametrize("name", STEPS)
def test_every_array_has_a_home_and_every_input_a_link(name):
    step, args = STEPS[name]
    graph, coarse = both(step, *args)
    assert [node.id for node in coarse.nodes] == list(range(len(coarse.nodes)))
    arrays = {
        value
        for value in (v for op in graph.ops for v in op.results)
        if any(extent > 1 for extent in graph.values[value].shape)
    }
    inner = {value for node in coarse.nodes for value, _ in node.inner}
    assert arrays <= inner | set(coarse.home)
    for value, (node, out) in coarse.home.items():
        assert coarse.nodes[node].outputs[out].value == value
        assert coarse.nodes[node].kind != "copy"
    linked = {(link.user, link.into) for link in coarse.links}
    for node in coarse.nodes:
        for k, port in enumerate(node.inputs):
            own = coarse.home.get(port.value, (node.id, 0))[0] == node.id
            assert ((node.id, k) in linked) != own
    for link in coarse.links:
        made, read = coarse.nodes[link.maker].outputs[link.out], coarse.nodes[link.user].inputs[link.into]
        assert made.value == read.value


@pytest.mark.parametrize("name", STEPS)
def test_factors_have_the_extents_of_their_dims_and_values_live_while_they_are_read(name):
    step, args = STEPS[name]
    graph, coarse = both(step, *args)
    for node in coarse.nodes:
        sizes = dict(node.sizes)
        assert set(node.splittable) <= set(sizes)
        assert {factor for factor, _ in node.labels} == set(sizes)
        for port in (*node.inputs, *node.outputs):
            assert port.first <= port.last <= len(graph.ops)
            for dim, extent in zip(port.dims, graph.values[port.value].shape, strict=True):
                if len(dim) == 1:
                    assert sizes[dim[0]] == extent
    for link in coarse.links:
        made, read = coarse.nodes[link.maker].outputs[link.out], coarse.nodes[link.user].inputs[link.into]
        assert made.first <= read.first or coarse.nodes[link.maker].kind in ("block", "copy")
        assert made.last >= read.first
    for leaf in graph.results:
        if leaf.value in coarse.home:
            node, out = coarse.home[leaf.value]
            assert coarse.nodes[node].outputs[out].last == len(graph.ops)


def test_arguments_live_all_the_step_and_state_reads_what_replaces_it():
    graph, coarse = both(sgd_step, *sgd_args())
    leaves = of_kind(coarse, "leaf")
    assert len(leaves) == 4
    for leaf in leaves:
        assert (leaf.outputs[0].first, leaf.outputs[0].last) == (0, len(graph.ops))
    results = {
        arg.value: graph.results[arg.partner].value for arg in graph.arguments if arg.partner is not None
    }
    replaced = {leaf.outputs[0].value: leaf.inputs[0].value for leaf in leaves if leaf.inputs}
    assert replaced == results


def test_a_loop_holds_what_it_reads_from_outside_until_it_ends():
    def step(x, w):
        outside = jnp.sin(w)
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ outside), None), x, length=3)[0]

    graph, coarse = both(step, f32(4, 8), f32(8, 8))
    sine = node_with(graph, coarse, "sin")
    inside = [op for op in graph.ops if op.region]
    last = max(graph.ops.index(op) for op in inside)
    assert sine.outputs[0].last == last


def test_loop_bodies_do_not_merge_with_what_surrounds_them():
    def step(x):
        y = jnp.sin(x)
        y = jax.lax.scan(lambda c, _: (jnp.cos(c), None), y, length=3)[0]
        return jnp.tanh(y)

    graph, coarse = both(step, f32(8, 8))
    together = [set(primitives(graph, node)) for node in coarse.nodes]
    assert not any(len(names & {"sin", "cos", "tanh"}) > 1 for names in together)
    carry = node_with(graph, coarse, "loop_carry")
    assert primitives(graph, carry) == ["loop_carry"]
    assert carry.repeat == 3.0


def test_a_factor_on_two_dims_of_one_value_cannot_be_split():
    coarse = coarsen(graph_of(lambda x: x * x.T, f32(8, 8)))
    (block,) = of_kind(coarse, "block")
    assert [size for _, size in block.sizes] == [8]
    assert block.splittable == ()


def test_a_block_with_too_many_factors_falls_back_to_its_ops():
    def wide(*vectors):
        total = vectors[0]
        for vector in vectors[1:]:
            total = total[..., None] * vector
        return total

    graph, coarse = both(wide, *[f32(2) for _ in range(7)])
    assert all(len(node.ops) <= 1 for node in coarse.nodes)
    assert sum(len(node.ops) for node in coarse.nodes) == len(graph.ops)


def test_scalars_are_nobodys_business():
    graph, coarse = both(lambda x, s: (x * (s + 1.0), s * 2.0), f32(8, 8), f32())
    assert all(graph.values[value].shape for value in coarse.home)
    assert sum(len(node.ops) for node in coarse.nodes) < len(graph.ops)


def gpt(layers: int) -> tuple[Graph, Coarse]:
    example = models.load("gpt", "tiny", layers=layers, batch=8, seq=8, d_model=16, heads=2)
    return both(example.step, abstract_state(example.init), example.batch)


@pytest.mark.parametrize("deep", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_every_layer_adds_the_same_nodes(deep):
    one, two, many = (len(gpt(layers)[1].nodes) for layers in (1, 2, deep))
    assert many == one + (deep - 1) * (two - one)


def test_what_a_loop_stacks_enters_the_next_one_once():
    def step(xs):
        def double(total, x):
            return total + x, x * 2

        def add(total, y):
            return total + y @ y.T, None

        total, ys = jax.lax.scan(double, jnp.zeros((8, 8)), xs)
        return jax.lax.scan(add, total, ys)[0]

    graph = graph_of(step, jax.ShapeDtypeStruct((5, 8, 8), jnp.float32))
    made = {op.results[0] for op in graph.ops if op.primitive == "scan_stack"}
    made |= {op.results[1] for op in graph.ops if op.primitive == "loop_carry"}
    entering = [port for node in coarsen(graph).nodes for port in node.inputs if port.value in made]
    assert entering
    assert {port.repeat for port in entering} == {1.0}
