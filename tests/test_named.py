"""The named schemes: which strategies each of them leaves to which node."""

import pytest
from pipeline import Stages, network_of, primitives, stages_of
from small_steps import adam_args, adam_step

from planner.graph.coarsen import Node
from planner.sharding.named import SCHEMES, Sort, allowed, sorts
from planner.sharding.strategy import result_spec, show

Kept = dict[str, set[str]]


@pytest.fixture(scope="module")
def line_stages() -> Stages:
    return stages_of(adam_step, *adam_args(), network=network_of("tpu_v5e:2x4", x=8))


@pytest.fixture(scope="module")
def cube_stages() -> Stages:
    return stages_of(adam_step, *adam_args(), network=network_of("tpu_v5p:2x2x2", x=2, y=2, z=2))


def sorts_of(stages: Stages) -> dict[int, Sort]:
    users: dict[int, list[Node]] = {}
    for link in stages.coarse.links:
        users.setdefault(link.maker, []).append(stages.coarse.nodes[link.user])
    return sorts(stages.coarse.nodes, users)


def kept(stages: Stages, scheme: str, node: Node) -> set[str]:
    """What a scheme leaves to a node, factors named by their labels where these tell them apart."""
    axes = stages.network.mesh.axes
    roles = SCHEMES[scheme].roles(len(axes))
    assert roles is not None
    table = stages.tables.nodes[node.id]
    found = allowed(node, sorts_of(stages)[node.id], table.strategies, dict(zip(axes, roles, strict=True)))
    return {show(table.strategies[i]) for i in found}


def argument(stages: Stages, path: str) -> Node:
    (leaf,) = [leaf for leaf in stages.graph.arguments if leaf.path == path]
    return stages.coarse.nodes[stages.coarse.home[leaf.value][0]]


def matmuls(stages: Stages) -> list[Node]:
    """Forward 1, forward 2, gradient of w2, gradient of the hidden, gradient of w1."""
    return [
        n for n in stages.coarse.nodes if n.kind == "op" and primitives(stages.graph, n) == ["dot_general"]
    ]


def test_roles_for_one_two_and_three_axes():
    told = {name: [scheme.roles(count) for count in (1, 2, 3)] for name, scheme in SCHEMES.items()}
    assert told == {
        "data": [("data",), ("data",) * 2, ("data",) * 3],
        "zero1": [("zero1",), ("zero1",) * 2, ("zero1",) * 3],
        "fsdp": [("fsdp",), ("fsdp",) * 2, ("fsdp",) * 3],
        "tensor_1d": [("tensor",), ("tensor",) * 2, ("tensor",) * 3],
        "tensor_1d_sp": [("sequence",), ("sequence",) * 2, ("sequence",) * 3],
        "fsdp_tensor": [None, ("fsdp", "sequence"), ("fsdp", "fsdp", "sequence")],
        "tensor_2d": [None, ("fsdp", "feature"), ("fsdp", "fsdp", "feature")],
        "tensor_3d": [None, None, ("fsdp", "cube", "cube")],
    }


def test_nodes_are_sorted_by_what_they_hold(line_stages):
    found = sorts_of(line_stages)
    by_path = {leaf.path: found[argument(line_stages, leaf.path).id] for leaf in line_stages.graph.arguments}
    assert by_path == {
        "state.mean.w1": "moment",
        "state.mean.w2": "moment",
        "state.params.w1": "parameter",
        "state.params.w2": "parameter",
        "state.square.w1": "moment",
        "state.square.w2": "moment",
        "batch.x": "data",
        "batch.y": "data",
    }
    for node in line_stages.coarse.nodes:
        if "sqrt" in primitives(line_stages.graph, node):
            assert found[node.id] == "update"
        if "max" in primitives(line_stages.graph, node):
            assert found[node.id] == "activation"
    assert {found[node.id] for node in matmuls(line_stages)} == {"op"}


@pytest.mark.parametrize(
    ("scheme", "parameter", "moment"),
    [
        ("data", {"{}"}, {"{}"}),
        ("zero1", {"{}"}, {"{x: f0}", "{x: f1}"}),
        ("fsdp", {"{x: f0}", "{x: f1}"}, {"{x: f0}", "{x: f1}"}),
        ("tensor_1d", {"{}", "{x: f0}", "{x: f1}"}, {"{}", "{x: f0}", "{x: f1}"}),
    ],
)
def test_where_the_state_of_each_scheme_lives(line_stages, scheme, parameter, moment):
    assert kept(line_stages, scheme, argument(line_stages, "state.params.w1")) == parameter
    assert kept(line_stages, scheme, argument(line_stages, "state.mean.w1")) == moment


@pytest.mark.parametrize("scheme", ["data", "zero1", "fsdp"])
def test_data_schemes_split_samples_only(line_stages, scheme):
    assert kept(line_stages, scheme, argument(line_stages, "batch.x")) == {"{x: f0}"}
    forward, _, gradient, hidden, _ = matmuls(line_stages)
    assert kept(line_stages, scheme, forward) == {"{x: f0}"}
    assert kept(line_stages, scheme, hidden) == {"{x: f0}"}
    scattered = set() if scheme == "data" else {"{x: f0>0}", "{x: f0>1}"}
    assert kept(line_stages, scheme, gradient) == {"{x: f0>+}"} | scattered


def test_megatron_splits_columns_or_rows_and_no_samples(line_stages):
    """f0 samples, f1 rows of the weight (contracted), f2 its columns."""
    forward = matmuls(line_stages)[0]
    assert kept(line_stages, "tensor_1d", forward) == {"{}", "{x: f1>+}", "{x: f2}"}


def test_the_cube_splits_rows_and_columns_of_every_weight(cube_stages):
    forward = matmuls(cube_stages)[0]
    found = kept(cube_stages, "tensor_3d", forward)
    assert found
    labels = dict(forward.labels)
    (contracted,) = forward.sums[0].reduced
    for text in found:
        strategy = next(s for s in cube_stages.tables.nodes[forward.id].strategies if show(s) == text)
        assert [labels[f] for f in strategy.split if "x" in strategy.axes(f)] == ["sample"]
        (row,) = strategy.axes(contracted)
        assert {row, *(a for f in strategy.split if f != contracted for a in strategy.axes(f))} == {
            "x",
            "y",
            "z",
        }
        assert strategy.finish == {row: 0} or strategy.finish == {row: 1}
        made = result_spec(forward.outputs[0].dims, strategy)
        assert sorted(axis for dim in made for axis in dim) == ["x", "y", "z"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_leaves_every_node_something(line_stages, cube_stages, scheme):
    for stages in (line_stages, cube_stages):
        roles = SCHEMES[scheme].roles(len(stages.network.mesh.axes))
        for node in stages.coarse.nodes if roles else ():
            every = {show(s) for s in stages.tables.nodes[node.id].strategies}
            left = kept(stages, scheme, node)
            assert left
            assert left <= every
            if sorts_of(stages)[node.id] == "free":
                assert left == every
