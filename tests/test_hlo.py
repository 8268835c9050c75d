"""Collectives read from HLO text: as this jax prints it, and as TPUs and GPUs print what CPUs never do."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from planner.hlo import Found, collectives, mesh_axes
from planner.replica_groups import groups_of


def compiled(mesh: Mesh, fn, *specs_in, out, shape=(32, 32)) -> tuple[Found, ...]:
    """The collectives of `fn` on float32 squares, with the given specs."""
    places = tuple(NamedSharding(mesh, spec) for spec in specs_in)
    step = jax.jit(fn, in_shardings=places, out_shardings=NamedSharding(mesh, out))
    program = step.lower(*[jax.ShapeDtypeStruct(shape, jnp.float32)] * len(places)).compile()
    return collectives(program.as_text() or "")


P = PartitionSpec
WHOLE = 32 * 32 * 4.0


def test_an_all_gather_holds_the_whole_array_of_its_group(grid: Mesh):
    (one,) = compiled(grid, jnp.sin, P("x", "y"), out=P("x", None))
    assert (one.kind, one.bytes, one.wire_bytes, one.group_size) == ("all-gather", WHOLE / 4, WHOLE / 8, 2)
    assert mesh_axes(one.groups, (4, 2), ("x", "y")) == ("y",)
    assert one.times == 1
    assert not one.reduces


def test_a_sum_that_is_only_sliced_is_told_from_one_that_is_kept(grid: Mesh):
    (kept,) = compiled(grid, jnp.matmul, P(None, "x"), P("x", None), out=P(None, None))
    (sliced,) = compiled(grid, jnp.matmul, P("y", "x"), P("x", None), out=P(("y", "x"), None))
    assert (kept.kind, kept.sliced, kept.bytes, kept.wire_bytes) == ("all-reduce", False, WHOLE, WHOLE * 1.5)
    assert (sliced.kind, sliced.sliced, sliced.bytes) == ("all-reduce", True, WHOLE / 2)
    assert mesh_axes(sliced.groups, (4, 2), ("x", "y")) == ("x",)


def test_an_all_to_all_sends_a_part_of_its_part(line: Mesh):
    (one,) = compiled(line, jnp.sin, P("x", None), out=P(None, "x"))
    assert (one.kind, one.bytes, one.wire_bytes) == ("all-to-all", WHOLE, WHOLE / 8 * 7 / 8)
    assert mesh_axes(one.groups, (8,), ("x",)) == ("x",)


def test_a_permute_has_pairs_and_a_loop_multiplies(line: Mesh):
    def shifted(x):
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.roll(x, 1, 0) * 2.0, x)

    found = compiled(line, shifted, P("x", None), out=P("x", None))
    assert {(one.kind, one.times, one.bytes) for one in found} == {("collective-permute", 5.0, 32 * 4.0)}
    assert all((0, 1) in one.groups for one in found)
    assert all(one.source.startswith(__file__) for one in found)
    assert all("while" in one.op_name for one in found)


def test_shard_map_scatters_even_on_cpu(line: Mesh):
    fn = jax.shard_map(
        lambda x: jax.lax.psum_scatter(x, "x", tiled=True),
        mesh=line,
        in_specs=P(None, "x"),
        out_specs=P("x"),
    )
    (one,) = compiled(line, fn, P(None, "x"), out=P("x", None))
    assert (one.kind, one.bytes, one.wire_bytes) == ("reduce-scatter", WHOLE / 8, WHOLE / 8 * 7 / 8)
    assert one.reduces


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,2},{1,3}}, x", ((0, 2), (1, 3))),
        ("replica_groups=[2,2]<=[4], x", ((0, 1), (2, 3))),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1), x", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}, x", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1':(2)2}, x", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1':(1)2}, x", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}, x", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['data'=2,'model'=2] {'model'}, dimensions={1}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['x'=1,'y'=4] {'y'}, dimensions={1}", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}, x", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}, x", ((0, 2), (1, 3))),
        ("replica_groups={}, x", ((0, 1, 2, 3),)),
        ("source_target_pairs={{0,1},{1,0}}, x", ((0, 1), (1, 0))),
    ],
)
def test_every_way_to_write_groups(text: str, groups: tuple[tuple[int, ...], ...]):
    assert groups_of(text, 4) == groups


def test_axes_of_groups_that_are_no_mesh_axes():
    assert mesh_axes(((0, 3), (1, 2)), (2, 2), ("x", "y")) is None
    assert mesh_axes(((0, 1, 2), (3,)), (2, 2), ("x", "y")) is None
    assert mesh_axes(((0, 1, 2, 3),), (2, 2), ("x", "y")) == ("x", "y")
    assert mesh_axes(((0, 9),), (2, 2), ("x", "y")) is None


TPU_AND_GPU = """HloModule jit_step, is_scheduled=true, num_partitions=4

%all-reduce-scatter.1 (input: bf16[64,32]) -> bf16[16,32] {
  %input = bf16[64,32]{1,0} parameter(0)
  %all-reduce.9 = bf16[64,32]{1,0} all-reduce(%input), metadata={source_file="a.py" source_line=3}
  ROOT %dynamic-slice.1 = bf16[16,32]{1,0} dynamic-slice(%all-reduce.9, %c), dynamic_slice_sizes={16,32}
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]) parameter(0)
  %ag = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%x), replica_groups=[1,4]<=[4], dimensions={0}
  %agd = f32[8,4]{1,0} all-gather-done(%ag)
  ROOT %t = (s32[], f32[8,4]) tuple(%i, %agd)
}

%cond (p: (s32[], f32[8,4])) -> pred[] {
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (a: bf16[64,32]) -> bf16[16,32] {
  %a = bf16[64,32]{1,0} parameter(0)
  %pair = ((f32[4], bf16[6]), (f32[16], bf16[24])) all-gather-start(%u, %v), replica_groups=[1,4]<=[4]
  %w = (s32[], f32[8,4]) while(%t0), condition=%cond, body=%body, metadata={op_name="jit(step)/while"}
  %cp = (f32[4]{0}, f32[4]{0}, u32[], u32[]) collective-permute-start(%u), source_target_pairs={{0,1},{1,0}}
  ROOT %rs = bf16[16,32]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_what_other_backends_print():
    scatter, inside, *pair, permute = collectives(TPU_AND_GPU)
    assert (scatter.kind, scatter.bytes, scatter.wire_bytes) == ("reduce-scatter", 4096.0, 3072.0)
    assert scatter.source == "a.py:3"
    assert (inside.kind, inside.bytes, inside.times) == ("all-gather", 128.0, None)
    assert [(one.name, one.bytes, one.times) for one in pair] == [("pair", 64.0, 1.0), ("pair", 48.0, 1.0)]
    assert (permute.kind, permute.bytes, permute.wire_bytes) == ("collective-permute", 16.0, 16.0)
    known = TPU_AND_GPU.replace("body=%body,", 'body=%body, backend_config={"known_trip_count":{"n":"12"}},')
    assert collectives(known)[1].times == 12.0


# As libtpu 0.0.42 prints a gather that it hides behind the work of three fusions, for 16 devices: every part
# names the whole gather.
SPREAD = """HloModule jit_step, is_scheduled=true, num_partitions=16
{fusions}
ENTRY %main (a: f32[1024,48]) -> f32[1024,768] {{
  %a = f32[1024,48]{{0,1:T(8,128)}} parameter(0)
  ROOT %r = f32[1024,768]{{0,1:T(8,128)}} fusion(%a), kind=kCustom, calls=%fused_computation.0
}}
"""
PART = """
%fused_computation.{n} (p.{n}: f32[1024,48]) -> f32[1024,768] {{
  %p.{n} = f32[1024,48]{{0,1:T(8,128)}} parameter(0)
  ROOT %all-gather.{n} = f32[1024,768]{{0,1:T(8,128)S(1)}} all-gather(%p.{n}), channel_id=111, \
replica_groups=mesh['axis_0'=1,'axis_1'=16] {{'axis_1'}}, dimensions={{1}}, use_global_device_ids=true, \
frontend_attributes={{chain_id="0"}}, metadata={{op_name="jit(step)/sharding_constraint" stack_frame_id=123}}
}}
"""


def test_a_gather_that_is_spread_over_fusions_counts_once():
    (one,) = collectives(SPREAD.format(fusions="".join(PART.format(n=n) for n in range(3))))
    assert (one.kind, one.bytes, one.group_size) == ("all-gather", 1024 * 768 * 4, 16)
    assert mesh_axes(one.groups, (1, 16), ("x", "y")) == ("y",)


def test_reading_text_needs_no_jax():
    script = "import sys, planner.hlo; print('jax' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "False"
