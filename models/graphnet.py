"""MeshGraphNet: messages along the edges of a graph, whose sums renew its nodes.

Pfaff et al. 2021 (arXiv 2010.03409). Several meshes make one graph, whose parts no edge joins; nodes and
edges are tied by the numbers of an edge's two nodes alone.

Shapes: N nodes, M edges, D width, I inputs of a node, J inputs of an edge, O outputs of a node.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.example import Batch, Example, TrainConfig
from models.train import nnx_train


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    """batch: meshes, of so many nodes and edges each. width: of nodes, edges and the MLPs' hidden layers.
    layers: rounds of messages. inputs, edge_inputs, outputs: numbers that describe a node, an edge, and what
    to say of a node."""

    nodes: int = 16
    edges: int = 64
    width: int = 32
    layers: int = 2
    inputs: int = 8
    edge_inputs: int = 4
    outputs: int = 4


CONFIGS = {
    "tiny": Config(learning_rate=3e-3),
    # The cylinder of its Table 1, 1885 nodes on average, with room for the larger meshes.
    "cylinder": Config(
        batch=16, nodes=2048, edges=12288, width=128, layers=15, inputs=11, edge_inputs=3, outputs=2,
        learning_rate=1e-4,
    ),
}  # fmt: skip


class Mlp(nnx.Module):
    """Three linears, and a norm of the result unless it is the last word."""

    def __init__(self, inputs: int, outputs: int, config: Config, *, rngs: nnx.Rngs, norm: bool = True):
        def linear(inputs: int, outputs: int) -> nnx.Linear:
            return nnx.Linear(inputs, outputs, dtype=config.dtype, rngs=rngs)

        self.linear1, self.linear2 = linear(inputs, config.width), linear(config.width, config.width)
        self.linear3 = linear(config.width, outputs)
        self.norm = nnx.LayerNorm(outputs, dtype=config.dtype, rngs=rngs) if norm else None

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.linear3(nnx.relu(self.linear2(nnx.relu(self.linear1(x)))))
        return x if self.norm is None else self.norm(x)


class Round(nnx.Module):
    """One round of messages: edges are renewed by their nodes, then nodes by the edges that arrive."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        width = config.width
        self.edge, self.node = (Mlp(k * width, width, config, rngs=rngs) for k in (3, 2))

    def __call__(
        self, nodes_ND: jax.Array, edges_MD: jax.Array, senders_M: jax.Array, receivers_M: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        ends = nodes_ND[senders_M], nodes_ND[receivers_M]
        edges_MD = edges_MD + self.edge(jnp.concatenate([edges_MD, *ends], -1))
        arrived_ND = jax.ops.segment_sum(edges_MD, receivers_M, nodes_ND.shape[0])
        return nodes_ND + self.node(jnp.concatenate([nodes_ND, arrived_ND], -1)), edges_MD


class GraphNet(nnx.Module):
    """Nodes [N, I], edges [M, J] and the numbers of their nodes [M] -> what is said of each node [N, O]."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs):
        self.nodes = Mlp(config.inputs, config.width, config, rngs=rngs)
        self.edges = Mlp(config.edge_inputs, config.width, config, rngs=rngs)
        self.rounds = nnx.List([Round(config, rngs=rngs) for _ in range(config.layers)])
        self.answer = Mlp(config.width, config.outputs, config, rngs=rngs, norm=False)

    def __call__(self, batch: Batch) -> jax.Array:
        nodes_ND, edges_MD = self.nodes(batch["nodes"]), self.edges(batch["edges"])
        for one in self.rounds:
            nodes_ND, edges_MD = one(nodes_ND, edges_MD, batch["senders"], batch["receivers"])
        return self.answer(nodes_ND)


def build(config: Config) -> Example:
    """The train step; its batch is {'nodes': [N, I], 'edges': [M, J], 'senders', 'receivers': [M], 'targets':
    [N, O]}."""
    nodes, edges = config.batch * config.nodes, config.batch * config.edges

    def loss_of(model: Any, batch: Batch) -> jax.Array:
        return jnp.square(model(batch).astype(jnp.float32) - batch["targets"]).mean()

    def make_batch(rng: np.random.Generator) -> Batch:
        """Random graphs; of a node the sum of its senders' numbers is to be said."""
        first = np.repeat(np.arange(config.batch) * config.nodes, config.edges)
        senders, receivers = first + rng.integers(0, config.nodes, (2, edges))
        x = rng.standard_normal((nodes, config.inputs), np.float32)
        targets = np.zeros((nodes, config.outputs), np.float32)
        np.add.at(targets, receivers, x[senders, : config.outputs])
        return {
            "nodes": x,
            "edges": rng.standard_normal((edges, config.edge_inputs), np.float32),
            "senders": senders.astype(np.int32),
            "receivers": receivers.astype(np.int32),
            "targets": targets,
        }

    def floats(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    ends = jax.ShapeDtypeStruct((edges,), jnp.int32)
    batch = {
        "nodes": floats(nodes, config.inputs),
        "edges": floats(edges, config.edge_inputs),
        "senders": ends,
        "receivers": ends,
        "targets": floats(nodes, config.outputs),
    }
    init, step = nnx_train(config, lambda rngs: GraphNet(config, rngs=rngs), loss_of)
    return Example("graphnet", config, init, step, batch, make_batch)
