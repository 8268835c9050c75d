"""A plan in the field's words: hand-made choices whose names everybody knows."""

import jax
import jax.numpy as jnp
import pytest
from pipeline import Stages, network_of, primitives, stages_of
from small_steps import adam_args, adam_step, f32

import planner
from planner.describe import describe
from planner.graph.coarsen import Node
from planner.planning import Decided
from planner.sharding.named import sorts
from planner.sharding.strategy import parse

MACHINE = "tpu_v5e:2x4"
LARGE = adam_args(batch=4096, inputs=2048, hidden=8192, outputs=2048)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("data", "data parallel over x (8)"),
        ("zero1", "ZeRO-1 over x (8)"),
        ("fsdp", "fsdp over x (8)"),
    ],
)
def test_schemes_are_called_by_their_names(scheme, words):
    plan = planner.plan(adam_step, *LARGE, machine=MACHINE, mesh={"x": 8}, schemes=[scheme])
    assert plan.words == words


def described(stages: Stages, wanted: dict[int, str]) -> str:
    """The words for the choice that gives these nodes these strategies, and splits nothing elsewhere."""
    users: dict[int, list[Node]] = {}
    for link in stages.coarse.links:
        users.setdefault(link.maker, []).append(stages.coarse.nodes[link.user])
    choice = [
        table.strategies.index(parse(wanted.get(v, "{}"))) for v, table in enumerate(stages.tables.nodes)
    ]
    decided = Decided(stages.graph, stages.coarse, stages.tables, choice)
    return describe(decided, sorts(stages.coarse.nodes, users))


def matmuls(stages: Stages) -> list[int]:
    """Forward 1, forward 2, gradient of w2, gradient of the hidden, gradient of w1."""
    return [n.id for n in stages.coarse.nodes if primitives(stages.graph, n) == ["dot_general"]]


def test_column_then_row_is_megatron():
    stages = stages_of(adam_step, *adam_args(), network=network_of(MACHINE, model=8))
    first, second, *_ = matmuls(stages)
    both = {first: "{model: f2}", second: "{model: f1>+}"}
    assert described(stages, both) == "Megatron column->row over model (8)"
    assert described(stages, {first: "{model: f2}"}) == "Megatron column over model (8)"
    assert described(stages, {second: "{model: f1>+}"}) == "Megatron row over model (8)"


def test_axes_are_described_apart_unless_they_do_the_same():
    stages = stages_of(adam_step, *adam_args(), network=network_of(MACHINE, data=2, model=4))
    first, second, *_ = matmuls(stages)
    wanted = {first: "{data: f0, model: f2}", second: "{data: f0, model: f1>+}"}
    assert described(stages, wanted) == "data parallel over data (2), Megatron column->row over model (4)"
    assert described(stages, {}) == "replicated work over data and model (2x4)"


def test_a_part_of_the_parameters_is_said_in_percent():
    """w1 has 16 x 32 parameters, w2 has 32 x 8: two thirds and one third."""
    stages = stages_of(adam_step, *adam_args(), network=network_of(MACHINE, x=8))
    first, *_ = matmuls(stages)
    home = {leaf.path: stages.coarse.home[leaf.value][0] for leaf in stages.graph.arguments}
    wanted = {first: "{x: f0}", home["state.params.w1"]: "{x: f0}"}
    assert described(stages, wanted) == "fsdp of 67% of the parameters over x (8)"
    wanted |= {home["state.params.w2"]: "{x: f1}"}
    assert described(stages, wanted) == "fsdp over x (8)"
    moments = {home[f"state.mean.{name}"]: "{x: f0}" for name in ("w1", "w2")}
    assert described(stages, {first: "{x: f0}", **moments}) == "ZeRO-1 over x (8)"


def test_a_table_looked_up_where_its_rows_are_split_is_a_split_vocabulary():
    def step(table, batch):
        def loss(t):
            return (jnp.take(t, batch, axis=0, mode="clip") @ t.T).sum()

        return table - jax.grad(loss)(table), loss(table)

    batch = jax.ShapeDtypeStruct((16, 4), jnp.int32)
    stages = stages_of(step, f32(64, 32), batch, network=network_of(MACHINE, x=8))
    lookups = [n for n in stages.coarse.nodes if primitives(stages.graph, n) == ["gather"]]
    assert lookups
    (rows,) = lookups[0].sums[0].reduced
    assert "vocabulary split" not in described(stages, {})
    assert described(stages, {lookups[0].id: f"{{x: {rows}>+}}"}).endswith(", vocabulary split")


def test_a_split_of_the_sequence_is_said():
    def step(weight, batch):
        def loss(w):
            return (jnp.tanh(batch @ w) ** 2).mean()

        return weight - jax.grad(loss)(weight), loss(weight)

    stages = stages_of(step, f32(16, 32), f32(4, 8, 16), network=network_of(MACHINE, x=8))
    heavy = [n for n in stages.coarse.nodes if n.kind == "op"]
    sequence = {n.id: next(f for f, name in n.labels if name == "attribute") for n in heavy}
    forward = [n for n in heavy if sequence[n.id] not in n.sums[0].reduced]
    wanted = {n.id: f"{{x: {sequence[n.id]}}}" for n in forward}
    assert described(stages, wanted) == "sequence or spatial split over x (8)"
