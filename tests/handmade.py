"""A plan made by hand, for the tests of what reads plans."""

import math

from planner.graph.graph import Site
from planner.plans import Collective, LeafPlan, Plan, SchemeRow


def leaf(path: str, shape: tuple[int, ...], spec, size: float) -> LeafPlan:
    return LeafPlan(path, shape, "float32", spec, size)


def row(scheme: str, step: float, applies: str = "") -> SchemeRow:
    return SchemeRow(scheme, {"data": 4, "model": 2}, step, 0.010, step - 0.010, 3e9, 5e7, True, applies)


def make_plan(layers: int = 3) -> Plan:
    """A plan by hand: `layers` equal layers, one bias, a batch."""
    column = ((), ("model",))
    weights = [leaf(f"state.params.layers.{i}.w1", (768, 3072), column, 4718592.0) for i in range(layers)]
    bias = leaf("state.params.out.b", (3072,), (("model",),), 6144.0)
    batch = LeafPlan("batch.inputs", (16, 256), "int32", (("data",), ()), 4096.0)
    loss = leaf("metrics.loss", (), (), 4.0)
    cost = (9437184.0, 7077888.0, 4e-4, 2.0)
    reductions = [
        Collective("all_reduce", ("data",), *cost, weight.path, "train.py:12") for weight in weights
    ]
    return Plan(
        machine="cpu:8",
        mesh={"data": 4, "model": 2},
        scheme="chosen",
        words="data parallel over data (4), Megatron column->row over model (2)",
        step_seconds=0.0124,
        compute_seconds=0.010,
        exposed_seconds=0.0024,
        peak_bytes=3e9,
        limit_bytes=math.inf,
        wire_bytes=42467328.0,
        flops=2e9,
        summed_seconds=0.0124,
        lower_bound_seconds=0.0124,
        stopped="exact",
        memory={"parameters": 1e9, "activations": 2e9},
        alive=(leaf("dot_general (gpt.py:88)", (64, 1024, 3072), (("data",), (), ("model",)), 1e8),),
        arguments=(*weights, bias, batch),
        results=(*weights, bias, loss),
        sites={
            Site("use", ((3, "jaxpr", None), (2, "branches", 1)), 12, 0): ((("data",), ()), ((), ())),
            Site("out", (), 2, 0): (((), ("model",)),),
            Site("in", (), -1, 4): ((),),
        },
        collectives=tuple(reductions),
        schemes=(row("chosen", 0.0124), row("data", 0.0150), row("tensor_3d", 0.0, "the mesh has two axes")),
        seconds={"trace": 0.5, "space": 0.1, "cost": 0.2, "solve": 0.3, "total": 1.1},
        unknown={"fft": 2},
        notes=("The batch is small.",),
        fingerprint="abc",
        versions={"meshwright": "0.1.0"},
    )
