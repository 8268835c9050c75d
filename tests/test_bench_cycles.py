"""The benchmark against the TPU compiler's estimates pairs fusions with nodes, and prices both."""

import gzip
import pathlib
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from pipeline import graph_of, node_with

from meshes.machine import load_machine
from planner.cost.roofline import work_seconds
from planner.graph.coarsen import coarsen
from planner.sharding.strategy import parse

ROOT = pathlib.Path(__file__).parent.parent
# Two fusions on one of 16 devices: a matmul in a fusion in a fusion, with a multiplication, of one that was
# planned; and one of a matmul of other extents, which nobody planned.
PROGRAM = """HloModule jit_step, is_scheduled=true

%inner (p: f32[64,768]) -> bf16[64,768] {
  %p = f32[64,768]{1,0} parameter(0)
  ROOT %m = bf16[64,768]{1,0} convert(%p)
}

%outer (a: f32[64,768], b: bf16[768,512]) -> bf16[64,512] {
  %a = f32[64,768]{1,0} parameter(0)
  %b = bf16[768,512]{1,0} parameter(1)
  %x = bf16[64,768]{1,0} fusion(%a), kind=kLoop, calls=%inner
  %c = bf16[64,512]{1,0} convolution(%x, %b), dim_labels=bf_io->bf, metadata={WHERE}
  ROOT %r = bf16[64,512]{1,0} multiply(%c, %c)
}

%other (d: bf16[64,768], e: bf16[768,128]) -> bf16[64,128] {
  %d = bf16[64,768]{1,0} parameter(0)
  %e = bf16[768,128]{1,0} parameter(1)
  ROOT %f = bf16[64,128]{1,0} convolution(%d, %e), dim_labels=bf_io->bf, metadata={WHERE}
}

ENTRY %main (u: f32[64,768], v: bf16[768,512], w: bf16[64,768], z: bf16[768,128]) -> bf16[64,512] {
  %u = f32[64,768]{1,0} parameter(0)
  %v = bf16[768,512]{1,0} parameter(1)
  %w = bf16[64,768]{1,0} parameter(2)
  %z = bf16[768,128]{1,0} parameter(3)
  %one = bf16[64,512]{1,0} fusion(%u, %v), kind=kOutput, calls=%outer, CYCLES:"15032"}
  ROOT %two = bf16[64,128]{1,0} fusion(%w, %z), kind=kOutput, calls=%other, CYCLES:"1670"}
}
"""


def matmul(x, w):
    return x @ w


def test_a_fusion_stands_beside_the_node_it_computes(tmp_path: pathlib.Path) -> None:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1024, 768), (768, 512))]
    graph = graph_of(matmul, *shapes)
    node = node_with(graph, coarsen(graph), "dot_general")
    strategy, sizes = parse("{x: f0}"), {"x": 16}
    path, line = graph.ops[node.ops[0]].source.rsplit(":", 1)
    where = f'source_file="/any/{path}" source_line={line}'
    cell = {
        "machine": "tpu_v5e:4x4",
        "sizes": sizes,
        "graph": graph,
        "nodes": ((node, "dot_general", strategy),),
        "text": PROGRAM.replace("WHERE", where).replace("CYCLES", 'backend_config={"estimated_cycles"'),
    }
    folder = tmp_path / "tpu_v5e_4x4"
    folder.mkdir()
    (folder / "gpt-data.pickle.gz").write_bytes(gzip.compress(pickle.dumps(cell)))
    command = [sys.executable, "scripts/bench_cycles", "--list", "--ops", f"--folder={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    machine = load_machine("tpu_v5e:4x4")
    (ours,) = work_seconds(node, "dot_general", graph, [strategy], machine, sizes)
    theirs = 15_032 / (197e12 / (2 * 4 * 128 * 128))  # the cycles over the clock
    first, second, *_, last = filter(None, done.stdout.splitlines())
    assert " ".join(first.split()) == (
        f"1 x 10.0 us, ours {1e6 * ours:.1f} us {100 * (ours / theirs - 1):+.1f}% "
        f"bf16[64,512] of bf16[64,768], bf16[768,512] at {path}:{line}"
    )
    assert "1.1 us, not paired  bf16[64,128] of bf16[64,768], bf16[768,128]" in second
    row = [text.strip() for text in last.strip("|").split("|")]
    assert row[:5] == ["tpu_v5e:4x4", "gpt", "data", "1", "1 (10.0%)"]
    assert float(row[8].rstrip("%")) == pytest.approx(100 * abs(ours / theirs - 1), abs=0.06)
    assert row[10] == "none"  # it multiplies, too
