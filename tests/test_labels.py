"""Labels: what the dims of a step stand for, found from its arguments and what contracts with what."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline import graph_of
from small_steps import adam_args, adam_step, f32, sgd_args, sgd_step

from planner.graph.graph import Graph
from planner.graph.labels import ATTRIBUTE, LABELS, NONE, PARAMETER, SAMPLE, batch_extent, join, label

some_label = st.sampled_from(LABELS)


@given(some_label, some_label, some_label)
def test_join_takes_the_stronger_in_any_order(a, b, c):
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c)
    assert join(a, a) == a
    assert join(a, NONE) == a
    assert join(a, SAMPLE) == SAMPLE


def arguments(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The labels of the dims of each argument, by path."""
    labels = label(graph).arguments
    return {leaf.path: labels[leaf.value] for leaf in graph.arguments}


def matmuls(graph: Graph) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(labels of the result's dims, labels of what is contracted) of each matmul."""
    labels = label(graph).factors
    return [
        (
            tuple(labels[op.id, dim[0]] for dim in op.rule.results[0]),
            tuple(labels[op.id, factor] for factor in op.rule.reduced),
        )
        for op in graph.ops
        if op.primitive == "dot_general"
    ]


def test_an_mlp_has_samples_and_parameters():
    graph = graph_of(sgd_step, *sgd_args())
    assert arguments(graph) == {
        "params.w1": (PARAMETER, PARAMETER),
        "params.w2": (PARAMETER, PARAMETER),
        "batch.x": (SAMPLE, PARAMETER),  # contracted with w1
        "batch.y": (SAMPLE, PARAMETER),  # compared with what w2 makes
    }
    forward = ((SAMPLE, PARAMETER), (PARAMETER,))
    gradient = ((PARAMETER, PARAMETER), (SAMPLE,))
    assert sorted(matmuls(graph)) == sorted([forward] * 3 + [gradient] * 2)


def test_every_factor_has_a_label():
    graph = graph_of(adam_step, *adam_args())
    labels = label(graph).factors
    assert set(labels) == {(op.id, factor) for op in graph.ops for factor in op.rule.factors}
    assert set(labels.values()) <= set(LABELS)


def attention(params, batch):
    """Self-attention with two heads over B x S x D, and a step of gradient descent."""

    def loss(p):
        q_BSHE = (batch @ p["q"]).reshape(4, 6, 2, 8)
        k_BSHE = (batch @ p["k"]).reshape(4, 6, 2, 8)
        scores_BHQK = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q_BSHE, k_BSHE))
        mixed = jnp.einsum("bhqk,bkhe->bqhe", scores_BHQK, k_BSHE)
        return (mixed.reshape(4, 6, 16) @ p["out"]).sum()

    return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss)(params)), 0.0


ATTENTION = ({name: f32(16, 16) for name in ("k", "out", "q")}, f32(4, 6, 16))


def test_attention_has_attributes_and_heads():
    graph = graph_of(attention, *ATTENTION)
    assert arguments(graph)["batch"] == (SAMPLE, ATTRIBUTE, PARAMETER)
    labels = label(graph).factors
    scores = next(op for op in graph.ops if graph.values[op.results[0]].shape in ((4, 2, 6, 6), (2, 4, 6, 6)))
    found = {op_factor[1]: name for op_factor, name in labels.items() if op_factor[0] == scores.id}
    assert sorted(found.values()) == [ATTRIBUTE, ATTRIBUTE, PARAMETER, PARAMETER, SAMPLE]
    (head_split,) = {
        tuple(labels[op.id, f] for f in op.rule.operands[0][2])
        for op in graph.ops
        if op.primitive == "reshape" and len(op.rule.operands[0]) == 3 and len(op.rule.operands[0][2]) == 2
    }
    assert head_split == (PARAMETER, PARAMETER)  # heads, and what is left of a head's width


def test_a_merge_of_samples_and_sequence_counts_as_samples():
    def flat(weight, batch):
        rows = batch.reshape(24, 8)
        return weight - rows.T @ (rows @ weight), 0.0

    graph = graph_of(flat, f32(8, 8), f32(4, 6, 8))
    (merge,) = [op for op in graph.ops if op.primitive == "reshape"]
    labels = label(graph).factors
    assert [labels[merge.id, f] for f in merge.rule.results[0][0]] == [SAMPLE, ATTRIBUTE]
    assert ((SAMPLE, PARAMETER), (PARAMETER,)) in matmuls(graph)


@pytest.mark.parametrize(
    ("args", "extent"),
    [
        ((f32(8, 8), f32(32, 8), f32(32)), 32),
        ((f32(8, 8), f32(16, 8), f32(4, 4), f32(16, 3)), 16),  # the commonest
        ((f32(8, 8), jax.ShapeDtypeStruct((2,), jnp.uint32), f32(5, 8)), 5),  # a raw key is no data
        ((f32(8, 8),), None),
        ((f32(8, 8), f32()), None),
    ],
)
def test_the_batch_is_what_most_data_arguments_lead_with(args, extent):
    def step(state, *data):
        return state * 2.0, sum(leaf.astype(jnp.float32).sum() for leaf in data)

    assert batch_extent(graph_of(step, *args)) == extent


def test_typed_keys_are_no_data():
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    graph = graph_of(lambda w, x, k: (w * x.sum(), jax.random.normal(k[0], ())), f32(8), f32(32, 8), key)
    assert batch_extent(graph) == 32


def accumulating(params, batch):
    """Gradients added up over micro-batches, then one update."""

    def micro(total, x):
        def loss(w):
            return jnp.sum((x @ w) ** 2)

        return total + jax.grad(loss)(params), None

    gradient, _ = jax.lax.scan(micro, jnp.zeros_like(params), batch)
    return params - 0.1 * gradient


def test_the_examples_of_micro_batches_come_after_the_dim_that_is_scanned():
    graph = graph_of(accumulating, f32(16, 8), f32(4, 32, 16))
    assert arguments(graph)["batch"] == (ATTRIBUTE, SAMPLE, PARAMETER)
    assert batch_extent(graph) == 32


def test_a_batch_that_is_cut_into_micro_batches_keeps_its_examples():
    def step(params, batch):
        return accumulating(params, batch.reshape(4, 32, 16))

    graph = graph_of(step, f32(16, 8), f32(128, 16))
    assert arguments(graph)["batch"] == (SAMPLE, PARAMETER)
    assert batch_extent(graph) == 128
    assert all(SAMPLE in (*kept, *summed) for kept, summed in matmuls(graph))
