"""Buffers: what a step holds in memory where the compiler fuses, by hand on small steps."""

import jax
import jax.numpy as jnp
from pipeline import graph_of
from small_steps import f32

from planner.graph.buffers import buffers, quotients


def grad_of(loss):
    return lambda params, x: jax.grad(lambda p: loss(p, x))(params)


def test_of_a_gelu_the_forward_pass_saves_what_goes_in():
    def loss(w, x):
        return (jax.nn.gelu(x @ w[0]) @ w[1]).sum()

    graph = graph_of(grad_of(loss), [f32(16, 32), f32(32, 8)], f32(64, 16))
    first, back = (
        op.results[0]
        for op in graph.ops
        if op.primitive == "dot_general" and graph.values[op.results[0]].shape == (64, 32)
    )
    (last,) = (
        op.operands[0]
        for op in graph.ops
        if op.primitive == "dot_general" and graph.values[op.results[0]].shape == (32, 16)
    )
    wide = {value for value in buffers(graph) if graph.values[value].shape == (64, 32)}
    assert wide == {first, back, last}  # the product, what comes back to the GELU, and what goes on from it
    assert buffers(graph)[first][1] == buffers(graph)[back][1] == buffers(graph)[last][0]


def test_the_tail_of_a_matmul_is_written_and_not_the_matmul_itself():
    def step(w, x):
        y = x @ w + 1.0
        return (y * y).sum(), jnp.sin(y)

    graph = graph_of(step, f32(16, 32), f32(64, 16))
    found = buffers(graph)
    (dot,) = (op for op in graph.ops if op.primitive == "dot_general")
    (add,) = (op for op in graph.ops if op.primitive == "add" and graph.values[op.results[0]].shape)
    assert dot.results[0] not in found
    assert found[add.results[0]][0] == graph.ops.index(dot)


def test_a_widening_is_left_to_those_who_read_it():
    def step(w, x):
        logits = (x @ w).astype(jnp.float32)
        return jax.nn.logsumexp(logits, axis=-1), (logits * logits).sum(-1)

    half = jax.ShapeDtypeStruct((16, 32), jnp.bfloat16), jax.ShapeDtypeStruct((64, 16), jnp.bfloat16)
    graph = graph_of(step, *half)
    wide = [graph.values[value].dtype for value in buffers(graph) if graph.values[value].shape == (64, 32)]
    assert wide == ["bfloat16"]


def test_what_a_sort_reads_is_an_array_and_what_a_matmul_reads_is_made_on_the_way_in():
    def step(w, x):
        return jnp.sort(jnp.sin(x), axis=0), jnp.cos(x) @ w

    graph = graph_of(step, f32(16, 32), f32(64, 16))
    made = {op.primitive: op.results[0] for op in graph.ops}
    found = buffers(graph)
    assert made["sin"] in found
    assert made["cos"] not in found


def test_what_is_made_of_two_arrays_is_one_unless_both_are_held_as_long():
    def product(w, x):
        one, other = x @ w[0], x @ w[1]
        return (one * other) @ w[2]

    def step(w, x):
        one, other = x @ w[0], x @ w[1]
        return (one * other) @ w[2], jnp.sin(one), jnp.cos(other)

    args = [f32(16, 32), f32(16, 32), f32(32, 8)], f32(64, 16)
    for function, written in ((product, True), (step, False)):
        graph = graph_of(function, *args)
        (mul,) = (op for op in graph.ops if op.primitive == "mul")
        assert (mul.results[0] in buffers(graph)) is written


def test_what_is_made_of_two_arrays_and_read_by_two_matmuls_is_one():
    """ResNet's residual stream: its block's two convolutions are held longer, and still it is written."""

    def step(w, x):
        one, other = x @ w[0], x @ w[1]
        total = one + other
        return total @ w[2], total @ w[3], jnp.sin(one), jnp.cos(other)

    graph = graph_of(step, [f32(16, 32), f32(16, 32), f32(32, 8), f32(32, 8)], f32(64, 16))
    (add,) = (op for op in graph.ops if op.primitive == "add")
    assert add.results[0] in buffers(graph)


def test_a_stack_has_its_memory_from_the_start_of_the_loop_and_a_carry_has_one_array():
    def step(w, x):
        def body(c, _):
            c = jnp.tanh(c @ w)
            return c, c

        return jax.lax.scan(body, x, length=3)

    graph = graph_of(step, f32(16, 16), f32(64, 16))
    found = buffers(graph)
    loop = [i for i, op in enumerate(graph.ops) if op.region]
    (stack,) = (op.results[0] for op in graph.ops if op.primitive == "scan_stack")
    assert found[stack] == (loop[0], len(graph.ops))
    (carry,) = (op for op in graph.ops if op.primitive == "loop_carry")
    inside, final = carry.results
    assert inside not in found
    assert found[final][0] == graph.ops.index(carry)
    assert found[final][1] >= loop[-1]


def test_the_rounded_weights_of_an_attention_are_quotients_and_those_that_are_not_rounded_are_not():
    def loss(v, x):
        exps = jnp.exp(x.astype(jnp.float32))
        weights = (exps / exps.sum(-1, keepdims=True)).astype(x.dtype)
        return (weights @ v).astype(jnp.float32).sum()

    for dtype, count in ((jnp.bfloat16, 1), (jnp.float32, 0)):
        args = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((32, 8), (64, 32))]
        graph = graph_of(lambda v, x: jax.grad(loss, argnums=(0, 1))(v, x), *args)
        found = quotients(graph)
        assert len(found) == count
        for value, (first, last) in found.items():
            assert graph.values[value].shape == (64, 32)
            assert graph.ops[first].primitive == "convert_element_type"
            assert graph.ops[last].primitive == "dot_general"
            assert value in graph.ops[last].operands


def test_a_chain_of_more_arrays_than_a_fusion_takes_is_written_on_the_way():
    def step(several, x):
        products = [x @ w for w in several]
        return sum(products[1:], products[0]), products

    for count, written in ((50, 1), (150, 2), (250, 3)):
        graph = graph_of(step, [f32(16, 32)] * count, f32(64, 16))
        found = buffers(graph)
        assert (
            sum(value in found for op in graph.ops if op.primitive == "add" for value in op.results)
            == written
        )
