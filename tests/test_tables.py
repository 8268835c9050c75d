"""The Problem: its tables against what their numbers stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pipeline import Stages, network_of, primitives, stages_of
from small_steps import adam_args, adam_step, f32, sgd_args, sgd_step
from test_trace import NESTED, nested

import models
from planner.cost.memory import held_values, stored_bytes
from planner.cost.problem import cost_of, peak_of, usage_over_time
from planner.cost.roofline import work_seconds
from planner.graph.graph import Value
from planner.planning import Decided, communication_seconds, memory_at_peak, peak_bytes
from planner.sharding.named import sorts
from planner.sharding.pin import Held, Pin
from planner.sharding.spec import pieces
from planner.sharding.strategy import show
from planner.training import abstract_state

MESHES = {
    "line": ("cpu:8", {"x": 8}),
    "grid": ("gpu_h100_sxm_80gb:2x4", {"x": 2, "y": 4}),
    "cube": ("tpu_v5p:2x2x2", {"x": 2, "y": 2, "z": 2}),
}


@pytest.fixture(scope="module", params=MESHES)
def stages(request) -> Stages:
    machine, sizes = MESHES[request.param]
    return stages_of(adam_step, *adam_args(), network=network_of(machine, **sizes))


def choices(stages: Stages, count: int = 12) -> list[tuple[int, ...]]:
    """Some choices: no node split, and others drawn at random."""
    rng = np.random.default_rng(0)
    drawn = [
        tuple(int(rng.integers(len(table.strategies))) for table in stages.tables.nodes) for _ in range(count)
    ]
    return [(0,) * len(stages.tables.nodes), *drawn]


def test_the_arrays_have_the_shapes_of_the_strategies(stages):
    problem = stages.tables.problem
    counts = [len(table.strategies) for table in stages.tables.nodes]
    assert [costs.shape for costs in problem.node_costs] == [(k,) for k in counts]
    for (u, w), table in zip(problem.edges, problem.edge_costs, strict=True):
        assert table.shape == (counts[u], counts[w])
    for usage in problem.node_usages:
        assert usage.bytes.shape == (counts[usage.of],)
        assert 0 <= usage.first < usage.last <= problem.horizon
    for usage in problem.edge_usages:
        u, w = problem.edges[usage.of]
        assert usage.bytes.shape == (counts[u], counts[w])
        assert 0 <= usage.first < usage.last <= problem.horizon


def test_a_choice_costs_its_work_and_its_collectives(stages):
    primitive = {op.id: op.primitive for op in stages.graph.ops}
    network = stages.network
    for choice in choices(stages):
        decided = Decided(stages.graph, stages.coarse, stages.tables, choice)
        work = sum(
            work_seconds(
                node,
                primitive[node.ops[0]] if node.ops else "",
                stages.graph,
                [decided.strategy[node.id]],
                network.machine,
                network.sizes,
            )[0]
            for node in stages.coarse.nodes
        )
        assert cost_of(stages.tables.problem, choice) == pytest.approx(work + communication_seconds(decided))


def test_the_peak_is_what_is_held_by_kind(stages):
    found = sorts(stages.coarse.nodes, {})
    for choice in choices(stages):
        decided = Decided(stages.graph, stages.coarse, stages.tables, choice)
        held = memory_at_peak(decided, found)
        assert sum(held.values()) == pytest.approx(peak_bytes(decided))
        if not stages.network.machine.scratchpad_bytes:
            assert peak_bytes(decided) == pytest.approx(peak_of(stages.tables.problem, choice))


def test_nothing_is_split_and_every_byte_is_held_once():
    """Stochastic gradient descent, whole on each device: the state once, because a new parameter is written
    into the donated one, and at the end of the step nothing but arguments."""
    stages = stages_of(sgd_step, *sgd_args(), network=network_of("cpu:8", x=8))
    whole = [next(i for i, s in enumerate(table.strategies) if not s.split) for table in stages.tables.nodes]
    held = usage_over_time(stages.tables.problem, whole)
    arguments = sum(stages.graph.values[leaf.value].bytes for leaf in stages.graph.arguments)
    gradients = [node for node in stages.coarse.nodes if "dot_general" in primitives(stages.graph, node)]
    last_gradient = 16 * 32 * 4
    assert held[-1] == arguments
    assert held[max(node.position for node in gradients)] >= arguments + last_gradient
    assert held.min() == arguments


@pytest.mark.parametrize("machine", ["cpu:8", "tpu_v5e:2x4"])
def test_an_argument_is_held_all_the_time_and_what_replaces_it_never_beside_it(machine):
    stages = stages_of(sgd_step, *sgd_args(), network=network_of(machine, x=8))
    nodes, problem = stages.coarse.nodes, stages.tables.problem
    replaced = {leaf.value for leaf in stages.graph.results if leaf.partner is not None}
    assert replaced
    held = held_values(stages.graph, stages.coarse, stages.network.machine.chip.kind)
    assert not replaced & set(held)
    for usage in problem.node_usages:
        if nodes[usage.of].kind == "leaf":
            assert (usage.first, usage.last) == (0, problem.horizon)
    times = {(usage.first, usage.last) for usage in problem.node_usages}
    assert {
        (first, last + 1) for value, (first, last) in held.items() if value in stages.coarse.home
    } <= times


def test_copies_hold_memory_on_their_edge_only(stages):
    nodes, problem = stages.coarse.nodes, stages.tables.problem
    assert not any(nodes[usage.of].kind == "copy" for usage in problem.node_usages)
    for usage in problem.edge_usages:
        link = stages.coarse.links[usage.of]
        if nodes[link.user].kind == "leaf":
            continue  # of an argument that is overwritten: see below
        made = stages.tables.nodes[link.maker].outputs[link.out]
        read = stages.tables.nodes[link.user].inputs[link.into]
        whole = stages.graph.values[nodes[link.user].inputs[link.into].value].bytes
        if (link.user, link.into) in stages.tables.rounded:
            whole /= 2
        for i, j in ((0, 0), (-1, -1), (0, -1), (-1, 0)):
            source, target = made.specs[made.index[i]], read.specs[read.index[j]]
            held = 0 if source == target else whole / pieces(target, stages.network.sizes)
            assert usage.bytes[i, j] == held
        assert nodes[link.user].kind != "leaf"


def test_a_copy_takes_the_specs_its_readers_want_and_no_other(stages):
    for node in stages.coarse.nodes:
        if node.kind == "copy":
            wanted = {
                spec
                for link in stages.coarse.links
                if link.maker == node.id
                for spec in stages.tables.nodes[link.user].inputs[link.into].specs
            }
            assert set(stages.tables.nodes[node.id].outputs[0].specs) == wanted


def test_a_pinned_leaf_has_one_strategy():
    free = stages_of(sgd_step, *sgd_args(), network=network_of("cpu:8", x=8))
    port = free.coarse.nodes[1].outputs[0]
    pin = {1: (Held(port.dims, Pin((("x",), ())), port.value, "a pin"),)}
    pinned = stages_of(sgd_step, *sgd_args(), network=network_of("cpu:8", x=8), pins=pin)
    assert [show(s) for s in pinned.tables.nodes[1].strategies] == ["{x: f0}"]
    for v, (one, other) in enumerate(zip(free.tables.nodes, pinned.tables.nodes, strict=True)):
        assert len(other.strategies) == (1 if v == 1 else len(one.strategies))


def deep(layers: int, network) -> Stages:
    """An MLP of equal layers with momentum, unrolled."""

    def loss(weights, x):
        for weight in weights:
            x = x + jnp.tanh(x @ weight)
        return (x * x).mean()

    def step(state, x):
        value, grads = jax.value_and_grad(loss)(state["w"], x)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
        return {"w": jax.tree.map(lambda w, m: w - m, state["w"], moments), "m": moments}, value

    weights = [f32(16, 16)] * layers
    return stages_of(step, {"w": weights, "m": weights}, f32(16, 16), network=network)


def different(stages: Stages) -> tuple[int, int, int]:
    """How many different node, node cost and edge tables there are."""
    problem = stages.tables.problem
    return (
        len({id(table) for table in stages.tables.nodes}),
        len({id(costs) for costs in problem.node_costs}),
        len({id(costs) for costs in problem.edge_costs}),
    )


def test_depth_adds_nodes_but_no_tables():
    network = network_of("tpu_v5p:2x2x2", x=2, y=2, z=2)
    few, many = deep(4, network), deep(8, network)
    assert len(many.tables.nodes) > 1.8 * len(few.tables.nodes)
    assert different(few) == different(many)


@pytest.mark.slow
def test_depth_adds_no_tables_to_a_gpt():
    def gpt(layers: int) -> Stages:
        example = models.load("gpt", "tiny", layers=layers, batch=8, seq=8, d_model=16, heads=2)
        args = (abstract_state(example.init), example.batch)
        return stages_of(example.step, *args, network=network_of("tpu_v5e:2x4", x=2, y=4))

    two, six = gpt(2), gpt(6)
    assert len({id(table) for table in six.tables.nodes}) == len({id(table) for table in two.tables.nodes})


def test_collectives_in_a_loop_are_paid_every_time():
    stages = stages_of(nested, *NESTED, network=network_of("cpu:2", x=2))
    assert {node.repeat for node in stages.coarse.nodes if node.kind == "op" and node.flops} == {3.0}
    inside = [
        link for link in stages.coarse.links if stages.coarse.nodes[link.user].inputs[link.into].repeat == 3.0
    ]
    assert inside
    for link in inside:
        port = stages.coarse.nodes[link.user].inputs[link.into]
        made = stages.tables.nodes[link.maker].outputs[link.out]
        read = stages.tables.nodes[link.user].inputs[link.into]
        table = stages.tables.problem.edge_costs[stages.coarse.links.index(link)]
        whole = stages.graph.values[port.value].bytes
        for i, source in enumerate(made.specs):
            for j, target in enumerate(read.specs):
                if target == ((),) * len(target) and source != target:
                    cost = table[list(made.index).index(i), list(read.index).index(j)]
                    once = stages.network.seconds("all_gather", ("x",), float(whole))
                    assert cost == pytest.approx(3.0 * once)


def test_what_a_tpu_keeps_in_tiles():
    """As its compiler prints it: f32[32] takes 512 bytes, f32[64, 32] lies transposed, f32[4, 1024] in tiles
    of 4 rows."""

    def stored(dtype: str, itemsize: int, *shape: int) -> float:
        return stored_bytes(Value(0, shape, dtype, itemsize), ((),) * len(shape), {}, "tpu")

    assert stored("float32", 4) == 512
    assert stored("float32", 4, 32) == 512
    assert stored("float32", 4, 768) == 4096
    assert stored("float32", 4, 64, 32) == 4 * 32 * 128
    assert stored("float32", 4, 4, 1024) == 4 * 4 * 1024
    assert stored("bfloat16", 2, 12, 1024, 64) == 2 * 12 * 1024 * 64
    assert stored_bytes(Value(0, (64, 32), "float32", 4), (("x",), ()), {"x": 4}, "cpu") == 4 * 16 * 32


def test_a_matmul_whose_sums_are_scattered_in_a_loop_reads_arrays():
    """Fully sharded on a TPU: the loop over a weight's gradient reads the activation that a matmul without
    a loop would make again."""

    def step(state, x):
        def loss(w):
            return (jnp.maximum(x @ w[0], 0.0) @ w[1]).sum()

        return [w - g for w, g in zip(state, jax.grad(loss)(state), strict=True)]

    weights = [f32(2048, 8192), f32(8192, 2048)]
    stages = stages_of(step, weights, f32(65536, 2048), network=network_of("tpu_v5p:2x2x2", x=8))
    relu = {op.results[0] for op in stages.graph.ops if op.primitive == "max"}
    assert not relu & set(held_values(stages.graph, stages.coarse, "tpu"))
    whole = 65536 * 8192 * 4
    found = [
        usage
        for usage in stages.tables.problem.node_usages
        if stages.coarse.nodes[usage.of].kind == "op" and whole / 8 in usage.bytes and 0.0 in usage.bytes
    ]
    assert found


@pytest.mark.parametrize(("machine", "itemsize"), [("tpu_v5e:2x4", 2), ("cpu:8", 4)])
def test_what_only_matmuls_read_is_written_as_they_round_it(machine, itemsize):
    def step(state, x):
        def loss(w):
            return jnp.sin((x @ w[0]) @ w[1]).sum()

        return [w - g for w, g in zip(state, jax.grad(loss)(state), strict=True)]

    weights = [f32(256, 512), f32(512, 1024)]
    stages = stages_of(step, weights, f32(2048, 256), network=network_of(machine, x=8))
    shapes = [
        [stages.graph.values[port.value].shape for port in node.outputs] for node in stages.coarse.nodes
    ]
    held = [u for u in stages.tables.problem.node_usages if (2048, 512) in shapes[u.of]]
    assert {usage.bytes.max() for usage in held} == {2048 * 512 * itemsize}


def test_weights_that_loops_scan_over_and_round_are_rounded_before_them():
    def step(weights, x):
        def layer(c, w):
            return jnp.tanh(c @ w.astype(jnp.bfloat16)), None

        return jax.lax.scan(layer, x, weights)[0]

    args = f32(3, 1024, 1024), jax.ShapeDtypeStruct((64, 1024), jnp.bfloat16)
    found = {}
    for machine in ("tpu_v5e:2x4", "cpu:8"):
        stages = stages_of(step, *args, network=network_of(machine, x=8))
        (weights,) = (
            node for node in stages.coarse.nodes if node.kind == "leaf" and len(node.outputs[0].dims) == 3
        )
        found[machine] = [u for u in stages.tables.problem.node_usages if u.of == weights.id]
    (all_the_time,) = found["cpu:8"]
    _, rounded = found["tpu_v5e:2x4"]
    assert np.array_equal(rounded.bytes, all_the_time.bytes / 2)
    assert all_the_time.first <= rounded.first < rounded.last < all_the_time.last


def test_an_argument_that_is_replaced_by_what_a_tpu_gathers_is_read_from_a_copy():
    """As ZeRO-1 on 16 TPUs v5e does with each weight of an MLP; none where none is gathered last."""
    for machine, copied in (("tpu_v5e:2x4", True), ("cpu:8", False)):
        stages = stages_of(sgd_step, *sgd_args(), network=network_of(machine, x=8))
        problem, nodes = stages.tables.problem, stages.coarse.nodes
        into = [u for u in problem.edge_usages if nodes[problem.edges[u.of][1]].kind == "leaf"]
        assert bool(into) is copied
        for usage in into:
            maker, leaf = problem.edges[usage.of]
            made, kept = stages.tables.nodes[maker].outputs[0], stages.tables.nodes[leaf].outputs[0]
            whole = stages.graph.values[nodes[leaf].outputs[0].value].bytes
            for s in range(len(made.index)):
                for t in range(len(kept.index)):
                    parts = [pieces(port.at(k), {"x": 8}) for port, k in ((made, s), (kept, t))]
                    assert usage.bytes[s, t] == (whole if parts == [8, 1] else 0)
            assert usage.first < usage.last <= nodes[maker].position + len(nodes[maker].ops)
