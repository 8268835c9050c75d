"""Size: what planning does grows as the step does, in depth as in breadth; counted, not timed."""

import functools
import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshes.machine import load_machine
from meshes.mesh import mesh_of
from planner import planning
from planner.cost.tables import build
from planner.cost.traffic import Network
from planner.graph.blocks import find_blocks
from planner.graph.coarsen import coarsen
from planner.jax_compat import trace_step
from planner.simulate.timeline import Simulator
from planner.solvers import auto
from planner.trace import build_graph

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "scripts" / "bench_size"
MACHINE = load_machine("tpu_v5e:4x4")
SLACK = 1.2  # above the growth of the step, which is three or four times


@functools.cache
def bench() -> Any:
    loader = importlib.machinery.SourceFileLoader("bench_size", str(SCRIPT))
    spec = importlib.util.spec_from_loader("bench_size", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def calls(run: Callable[[], Any]) -> tuple[int, Any]:
    """Calls of Python functions while something runs, and what it gives."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        made = run()
    finally:
        sys.setprofile(before)
    return count, made


def stages(layers: int, experts: int) -> dict[str, int]:
    """Calls of each stage, and the number of equations."""
    params = bench().weights(layers, experts)
    state = {"params": params, "first": params, "second": params}
    data = jax.ShapeDtypeStruct((bench().TOKENS, bench().WIDTH), jnp.float32)
    traced = trace_step(bench().train_step, (state, {"x": data, "y": data}), None, 0)
    count: dict[str, int] = {}
    count["walk"], graph = calls(lambda: build_graph(traced))
    count["space"], coarse = calls(lambda: coarsen(graph))
    network = Network(MACHINE, mesh_of(MACHINE, {"x": 16}))
    count["tables"], tables = calls(lambda: build(graph, coarse, network, MACHINE.memory_bytes))
    count["solve"], choice = calls(lambda: auto.solve(tables.problem, seconds=600.0))
    assert choice.stopped == "exact"
    decided = planning.Decided(graph, coarse, tables, choice.choice)
    count["timeline"], _ = calls(lambda: Simulator(graph, coarse, tables).run(choice.choice))
    count["peak"], _ = calls(lambda: planning.peak_bytes(decided))
    count["sites"], _ = calls(lambda: planning.sites(decided))
    count["collectives"], _ = calls(lambda: planning.collectives(decided))
    return count | {"equations": len(graph.ops)}


@pytest.mark.parametrize("larger", [(8, 4), (2, 16)], ids=["deeper", "broader"])
def test_every_stage_grows_as_the_step_does(larger):
    small, large = stages(2, 4), stages(*larger)
    growth = large.pop("equations") / small.pop("equations")
    assert growth > 3.0
    steeper = {
        name: large[name] / small[name] for name in small if large[name] > SLACK * growth * small[name]
    }
    assert steeper == {}, f"the step grew {growth:.1f} times"


def test_a_value_that_many_light_ops_read_ties_each_of_them_once():
    def step(x):
        return [x * k + 1.0 for k in range(1, 9)]

    def broad(x):
        return [x * k + 1.0 for k in range(1, 65)]

    def count(fn):
        graph = build_graph(trace_step(fn, (jax.ShapeDtypeStruct((64, 64), jnp.float32),), None, None))
        return calls(lambda: find_blocks(graph, {op.id: i for i, op in enumerate(graph.ops)}))[0]

    assert count(broad) < 8 * count(step)
