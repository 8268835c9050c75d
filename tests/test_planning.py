"""From a choice to a plan: what it says must be what the choice means."""

import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pipeline import graph_of, network_of, stages_of
from small_steps import adam_args, adam_step, f32, sgd_args, sgd_step
from test_trace import NESTED, SCANNED, nested, scanned

import planner
from planner.cost.problem import cost_of, peak_of
from planner.planning import (
    Decided,
    collectives,
    communication_seconds,
    fingerprint,
    leaf_plans,
    sites,
    wire_bytes,
)
from planner.plans import Plan
from planner.sharding.reshard import reshard
from planner.sharding.spec import divides, pieces

MACHINE = "tpu_v5e:2x4"
STEPS = {
    "adam": (adam_step, adam_args()),
    "scan": (scanned, SCANNED),
    "nested": (nested, NESTED),
}
MESHES = {"line": {"x": 8}, "grid": {"x": 2, "y": 4}, "cube": {"x": 2, "y": 2, "z": 2}}


def decided_at_random(name: str, mesh: str, seed: int) -> Decided:
    step, args = STEPS[name]
    stages = stages_of(step, *args, network=network_of(MACHINE, **MESHES[mesh]))
    rng = np.random.default_rng(seed)
    choice = [int(rng.integers(len(table.strategies))) for table in stages.tables.nodes]
    return Decided(stages.graph, stages.coarse, stages.tables, choice)


cases = pytest.mark.parametrize(
    ("name", "mesh", "seed"), [(name, mesh, seed) for name in STEPS for mesh in MESHES for seed in (0, 1)]
)


@cases
def test_sites_cover_every_producer_with_the_spec_it_is_kept_in(name, mesh, seed):
    decided = decided_at_random(name, mesh, seed)
    found = sites(decided)
    for value in decided.graph.values:
        made_by_node = value.id in decided.specs
        assert made_by_node or all(extent == 1 for extent in value.shape) or not _is_used(decided, value.id)
        for site in value.made if made_by_node else ():
            *way, kept = found[site]
            assert kept == decided.spec(value.id)
            assert not way or kept not in way


def _is_used(decided: Decided, value: int) -> bool:
    """Whether an op that is part of the step makes or reads the value."""
    graph = decided.graph
    return any(value in (*op.operands, *op.results) for op in graph.ops) or any(
        value == leaf.value for leaf in (*graph.arguments, *graph.results)
    )


@cases
def test_specs_divide_and_ways_end_where_the_use_wants_them(name, mesh, seed):
    decided = decided_at_random(name, mesh, seed)
    graph, found = decided.graph, sites(decided)
    for value, spec in decided.specs.items():
        assert divides(spec, graph.values[value].shape, decided.sizes)
    made = {site for value in graph.values for site in value.made}
    uses = {
        site: value
        for op in graph.ops
        for value, several in zip(op.operands, op.uses, strict=True)
        for site in several
    }
    for site, way in found.items():
        if site in made:
            continue
        value = uses[site]
        assert value is not None
        shape = graph.values[value].shape
        assert all(len(spec) == len(shape) and divides(spec, shape, decided.sizes) for spec in way)
        kept = decided.spec(value)
        nested = all(made.path != site.path for made in graph.values[value].made)
        assert way[0] != kept or (nested and way == (kept,))
    for link in decided.coarse.links:
        port = decided.coarse.nodes[link.user].inputs[link.into]
        if decided.coarse.nodes[link.user].kind == "copy" or not port.uses:
            continue
        wanted = decided.read(link)
        for site in port.uses:
            assert (found[site][-1] if site in found else decided.spec(port.value)) == wanted


@cases
def test_a_slice_of_what_is_kept_is_taken_from_there_and_not_from_a_copy(name, mesh, seed):
    decided = decided_at_random(name, mesh, seed)
    found, nodes, sizes = sites(decided), decided.coarse.nodes, decided.sizes
    into = {link.user: link for link in decided.coarse.links if nodes[link.user].kind == "copy"}
    for link in decided.coarse.links:
        if link.maker in into and not reshard(decided.made(link), decided.read(link), sizes):
            kept, wanted = decided.made(into[link.maker]), decided.read(link)
            for site in nodes[link.user].inputs[link.into].uses:
                if not reshard(kept, wanted, sizes):
                    assert found.get(site, (kept,)) == (wanted,)


def biased(params, x):
    def loss(params):
        return jnp.mean(jax.nn.gelu(x @ params["w"] + params["b"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def test_what_two_blocks_read_in_one_spec_moves_once():
    """The forward pass and the update read the whole bias; XLA gathers it once, and so does the plan."""
    args = {"w": f32(64, 64), "b": f32(64)}, f32(32, 64)
    plan = planner.plan(biased, *args, machine="cpu:8", mesh={"x": 8}, schemes=["fsdp"])
    assert [c.value for c in plan.collectives if c.kind == "all_gather"] == ["params.w", "params.b"]
    found = planner.verify(plan, biased, *args)
    assert [row.status for row in found.rows] == ["as all_reduce", *["as planned"] * 3]
    assert found.wire.compiled == found.wire.planned


@cases
def test_collectives_add_up_to_the_communication(name, mesh, seed):
    decided = decided_at_random(name, mesh, seed)
    listed = collectives(decided)
    assert sum(c.seconds * c.times for c in listed) == pytest.approx(communication_seconds(decided))
    assert sum(c.wire_bytes * c.times for c in listed) == pytest.approx(wire_bytes(decided))
    assert [c.seconds * c.times for c in listed] == sorted(
        (c.seconds * c.times for c in listed), reverse=True
    )
    expected = Counter()
    for link in decided.coarse.links:
        for step in reshard(decided.made(link), decided.read(link), decided.sizes):
            expected[step.kind, step.axes] += 1
    for table, chosen in zip(decided.tables.nodes, decided.choice, strict=True):
        expected.update((t.kind, t.axes) for t in table.sums[chosen] if t.kind == "permute")
    moved = Counter((c.kind, c.axes) for c in listed if c.kind in ("all_gather", "all_to_all", "permute"))
    assert moved == expected


@cases
def test_a_result_lives_where_the_argument_it_replaces_does(name, mesh, seed):
    decided = decided_at_random(name, mesh, seed)
    arguments, results = leaf_plans(decided)
    assert [leaf.path for leaf in arguments] == [leaf.path for leaf in decided.graph.arguments]
    for leaf, result in zip(decided.graph.results, results, strict=True):
        if leaf.partner is not None:
            assert result.spec == arguments[leaf.partner].spec
    for planned in (*arguments, *results):
        size = math.prod(planned.shape) * (4 if planned.dtype else 0) / pieces(planned.spec, decided.sizes)
        padded = decided.tables.network.machine.chip.kind == "tpu" and planned.dtype
        assert planned.bytes >= size if padded else planned.bytes == size


def linear_step(state, batch):
    """One layer with Adam: 12 bytes of state a parameter, and 4 of gradient."""

    def loss(w):
        return ((batch["x"] @ w - batch["y"]) ** 2).mean()

    grad = jax.grad(loss)(state["w"])
    mean = 0.9 * state["mean"] + 0.1 * grad
    square = 0.99 * state["square"] + 0.01 * grad * grad
    return {"w": state["w"] - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), "mean": mean, "square": square}, 0.0


INPUTS, OUTPUTS, BATCH, DEVICES = 8192, 8192, 1024, 8
COUNT = INPUTS * OUTPUTS  # of the parameters
EXAMPLES = 4 * BATCH * (INPUTS + OUTPUTS) / DEVICES  # bytes of the batch on one device


@pytest.fixture(scope="module")
def linear() -> dict[str, Plan]:
    weight = f32(INPUTS, OUTPUTS)
    args = (
        dict.fromkeys(("w", "mean", "square"), weight),
        {"x": f32(BATCH, INPUTS), "y": f32(BATCH, OUTPUTS)},
    )
    return {
        name: planner.plan(linear_step, *args, machine=MACHINE, mesh={"x": DEVICES}, schemes=[name])
        for name in ("data", "zero1", "fsdp")
    }


def test_the_memory_of_a_linear_layer_with_adam_by_hand(linear):
    held = {name: plan.memory for name, plan in linear.items()}
    for name, (parameters, moments) in {
        "data": (4 * COUNT, 8 * COUNT),
        "zero1": (4 * COUNT, 8 * COUNT / DEVICES),
        "fsdp": (4 * COUNT / DEVICES, 8 * COUNT / DEVICES),
    }.items():
        assert held[name]["parameters"] == parameters
        assert held[name]["optimizer state"] == moments
        assert held[name]["batch"] == EXAMPLES
    # Data parallelism has its peak where the sum of the gradients is finished: it is there before and after.
    # What the gradient is made from, 4 MiB, lies on the chip.
    assert held["data"]["gradients"] == 2 * 4 * COUNT
    assert "activations" not in held["data"]
    assert linear["data"].peak_bytes == sum(held["data"].values())
    # Fully sharded: the whole gradient is there before its sum is scattered. Its part is on the chip, too.
    assert linear["fsdp"].peak_bytes == 12 * COUNT / DEVICES + EXAMPLES + 4 * COUNT


def test_the_more_state_a_scheme_splits_the_less_it_holds(linear):
    data, zero1, fsdp = (linear[name].peak_bytes for name in ("data", "zero1", "fsdp"))
    assert fsdp < zero1 < data
    # A TPU reads the weights from a copy where it gathers the new ones into their place.
    assert linear["zero1"].memory["resharded copies"] == 4 * COUNT
    assert data - zero1 >= 8 * COUNT * (1 - 1 / DEVICES) - 4 * COUNT


def test_the_gradient_is_what_data_parallelism_sends(linear):
    """All-reduce: each of 8 devices sends 2 * 7/8 of the gradient, and as much where its sum should be
    scattered over the whole slice, which a TPU does not do; then ZeRO-1 gathers w, and FSDP w as bfloat16."""
    whole = 7 / 8 * 4 * COUNT
    assert linear["data"].wire_bytes == pytest.approx(2 * whole)
    assert linear["zero1"].wire_bytes == pytest.approx((2 + 1) * whole)
    assert linear["fsdp"].wire_bytes == pytest.approx((2 + 1 / 2) * whole)
    kinds = {name: sorted(c.kind for c in plan.collectives) for name, plan in linear.items()}
    assert kinds == {
        "data": ["all_reduce"],
        "zero1": ["all_gather", "all_reduce"],
        "fsdp": ["all_gather", "all_reduce"],
    }


@pytest.mark.parametrize("mesh", MESHES)
def test_a_plan_says_what_its_choice_costs(mesh):
    plan = planner.plan(adam_step, *adam_args(), machine=MACHINE, mesh=MESHES[mesh])
    assert plan.step_seconds == pytest.approx(plan.compute_seconds + plan.exposed_seconds)
    spent = sum(c.seconds * c.times for c in plan.collectives)
    assert 0 <= plan.exposed_seconds <= spent
    assert plan.summed_seconds == pytest.approx(plan.compute_seconds + spent)
    assert plan.wire_bytes == pytest.approx(sum(c.wire_bytes * c.times for c in plan.collectives))
    assert plan.peak_bytes == pytest.approx(sum(plan.memory.values()))
    sizes = [leaf.bytes for leaf in plan.alive]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= plan.peak_bytes
    assert plan.lower_bound_seconds <= plan.summed_seconds
    assert plan.peak_bytes <= plan.limit_bytes


def test_a_decided_choice_knows_its_cost():
    decided = decided_at_random("adam", "grid", 3)
    problem = decided.tables.problem
    assert cost_of(problem, decided.choice) > communication_seconds(decided) > 0
    assert peak_of(problem, decided.choice) > sum(leaf.bytes for leaf in leaf_plans(decided)[0])


def test_fingerprints_tell_programs_and_shapes_apart():
    def other_step(params, batch):
        new, loss = sgd_step(params, batch)
        return jax.tree.map(jnp.abs, new), loss

    same = fingerprint(graph_of(sgd_step, *sgd_args()))
    assert same == fingerprint(graph_of(sgd_step, *sgd_args()))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sgd_args())
    assert same == fingerprint(graph_of(sgd_step, *zeros))
    assert same != fingerprint(graph_of(sgd_step, *sgd_args(batch=16)))
    assert same != fingerprint(graph_of(other_step, *sgd_args()))
