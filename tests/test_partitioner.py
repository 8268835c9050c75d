"""Matmuls and convolutions split over three axes: strategies drawn from the space compute the right numbers.

What XLA's partitioner computes wrongly is left out of the space (`planner.sharding.strategy`,
`planner.rules.contraction`); the first tests hold what that is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import make_mesh
from jax import lax
from pipeline import graph_of, node_with

from planner.graph.coarsen import Node, coarsen
from planner.jax_compat import named_sharding
from planner.sharding.strategy import parse, result_spec, spec_of, strategies

SIZES = {"x": 2, "y": 2, "z": 2}


def product(a, b):
    return jnp.einsum("bik,bkj->bij", a, b)


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def filter_gradient(x, dy):
    return jax.linear_transpose(lambda w: conv(x, w), jax.ShapeDtypeStruct((3, 3, 4, 16), x.dtype))(dy)[0]


CASES = {
    "product": (product, "dot_general", (8, 16, 32), (8, 32, 64)),
    "conv": (conv, "conv_general_dilated", (8, 16, 16, 4), (3, 3, 4, 16)),
    "filter gradient": (filter_gradient, "conv_general_dilated", (8, 16, 16, 4), (8, 16, 16, 16)),
}


def node_of(case: str) -> Node:
    function, primitive, *shapes = CASES[case]
    graph = graph_of(function, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    return node_with(graph, coarsen(graph), primitive)


@pytest.mark.parametrize(
    ("case", "strategy", "allowed"),
    [
        ("product", "{x: b, y: k>0, z: k>1}", False),
        ("product", "{x: b, y: k>0, z: k>+}", False),
        ("product", "{x: b, y: k>0, z: k>0}", True),
        ("product", "{x: i, y: k>0, z: k>1}", True),
        ("conv", "{x: h, y: o}", False),
        ("conv", "{x: h, y: n, z: w}", True),
        ("filter gradient", "{x: h>+}", False),
        ("filter gradient", "{x: h>+, y: n>+, z: n>+}", True),
    ],
)
def test_what_the_partitioner_gets_wrong_is_no_strategy(case: str, strategy: str, allowed: bool):
    node = node_of(case)
    names = {"product": ("bik", "bkj"), "conv": ("nhwc", "  co"), "filter gradient": ("nhwc", "nhwo")}[case]
    ours = {
        letter: dim[0]
        for port, letters in zip(node.inputs, names, strict=True)
        for dim, letter in zip(port.dims, letters, strict=True)
        if dim and letter != " "
    }
    wanted = parse("".join(ours.get(letter, letter) for letter in strategy))
    assert (wanted in strategies(node, SIZES, stores_state=False)) == allowed


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_random_strategies_compute_what_the_op_does(case: str):
    function, _, *shapes = CASES[case]
    node, rng = node_of(case), np.random.default_rng(0)
    args = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    wanted, mesh = np.asarray(jax.jit(function)(*args)), make_mesh(**SIZES)
    every = [s for s in strategies(node, SIZES, stores_state=False) if sum(map(len, s.split.values())) > 1]
    for choice in rng.choice(len(every), size=20, replace=False):
        strategy = every[choice]
        ins = tuple(named_sharding(mesh, spec_of(port.dims, strategy)) for port in node.inputs)
        out = named_sharding(mesh, result_spec(node.outputs[0].dims, strategy))
        found = jax.jit(function, in_shardings=ins, out_shardings=out)(*args)
        error = np.abs(np.asarray(found) - wanted).max()
        assert error < 1e-4 * np.abs(wanted).max(), strategy
