"""What the compiler writes to standard error: its warnings are read, the rest goes where it should."""

import os

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from planner.compiler_log import listening
from planner.hlo_text import sources

# As libtpu 0.0.42 and jaxlib 0.10.2 write it, each on one line.
WARNING = (
    "W1129 19:33:18.047116    1241 spmd_partitioner.cc:654] [SPMD] Involuntary full rematerialization. The "
    "compiler cannot go from sharding {devices=[1,2,4]<=[8] last_tile_dim_replicate} to {devices=[4,1,2]<="
    "[2,2,2]T(1,0,2) last_tile_dim_replicate} efficiently for HLO operation %sharding_constraint.0 = "
    "f32[64,32]{1,0} copy(%sin.0), sharding={devices=[1,2,4]<=[8] last_tile_dim_replicate}, "
    'metadata={op_name="jit(f)/sharding_constraint" stack_frame_id=3}. As the last resort, SPMD will '
    "replicate the tensor and then partition it to obtain the target sharding, which is inefficient.\n"
)
OTHER = "W1129 19:33:13.182164    1194 llo_module.h:502] The log function has NOT been set.\n"
LOUD = "E1129 19:33:14.000000    1194 service.cc:12] Something else.\n"


def write(*lines: str) -> None:
    os.write(2, "".join(lines).encode())


def test_a_warning_is_read_and_the_rest_is_passed_on(capfd: pytest.CaptureFixture[str]):
    with listening("cpu") as heard:
        write(OTHER, WARNING, LOUD)
    (one,) = heard.remade
    assert one.shape == "f32[64,32]"
    assert one.source({"3": "train.py:7"}) == "train.py:7"
    assert capfd.readouterr().err == OTHER + LOUD


def test_the_many_warnings_that_were_asked_for_only_to_read_them_are_kept_back(
    capfd: pytest.CaptureFixture[str],
):
    with listening("tpu") as heard:
        write(OTHER, WARNING, LOUD)
    assert len(heard.remade) == 1
    assert capfd.readouterr().err == ""


def test_a_failing_compilation_leaves_standard_error_as_it_was(capfd: pytest.CaptureFixture[str]):
    def fail():
        with listening("tpu"):
            write(OTHER, LOUD)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    write("after\n")
    assert capfd.readouterr().err == LOUD + "after\n"


# As libtpu 0.0.42 reports a program that does not fit, in part.
REPORT = """E1129 19:59:59.994885   17061 deepsea_compiler_base.cc:3781] XLA:TPU compile permanent error. \
Ran out of memory in memory space hbm. Used 24.00G of 15.75G hbm. Memory usage report:

  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
    4.00GiB( 50%);    4.00GiB;        16384;                1; bf16[32768,65536]
    8.00GiB(100%);    4.00GiB;   4294983680;                1; bf16[65536,32768]
    8.00GiB(100%);       512B;            0;                1; (f32[32768,32768], bf16[32768,32768])
"""


def test_what_does_not_fit_is_read_from_the_report_on_memory(capfd: pytest.CaptureFixture[str]):
    with listening("tpu") as heard:
        write(REPORT)
    assert heard.largest == ("bf16[32768,65536] (4.00GiB)", "bf16[65536,32768] (4.00GiB)")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("platform", "level", "deaf"),
    [
        ("cpu", "", ""),
        ("cpu", "1", ""),
        ("cpu", "3", "unset TF_CPP_MIN_LOG_LEVEL"),
        ("tpu", "1", ""),
        ("tpu", "", "set TPU_STDERR_LOG_LEVEL=1"),
    ],
)
def test_it_says_how_to_have_the_warnings(
    platform: str, level: str, deaf: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TPU_STDERR_LOG_LEVEL" if platform == "tpu" else "TF_CPP_MIN_LOG_LEVEL", level)
    with listening(platform) as heard:
        pass
    assert heard.deaf == deaf


def test_what_this_jax_writes_is_understood(cube: Mesh):
    before, after = (
        NamedSharding(cube, spec) for spec in (PartitionSpec(None, "x"), PartitionSpec(("y", "x"), None))
    )

    def fn(x):
        x = jax.lax.with_sharding_constraint(jnp.sin(x), before)
        return jax.lax.with_sharding_constraint(x, after) * 2.0  # the line that is named

    step = jax.jit(fn, in_shardings=before, out_shardings=after)
    lowered = step.lower(jax.ShapeDtypeStruct((64, 64), jnp.float32))
    with listening("cpu") as heard:
        program = lowered.compile()
    (one,) = heard.remade
    assert one.shape == "f32[64,32]"
    at = one.source(sources(program.as_text() or ""))
    assert at.rpartition(":")[0] == __file__
