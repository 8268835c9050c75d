"""The report: every number is there, equal layers are one row, and a pipe reads as well as a terminal."""

import dataclasses
import io

import pytest
from handmade import leaf, make_plan

from planner.plans import Plan
from planner.report.groups import common, group_collectives, group_leaves
from planner.report.honesty import honesty
from planner.report.machines import machine_json, machine_table
from planner.report.tables import Measured, comparison_table, console, measured_table, plan_table
from planner.report.units import duration, memory, quantity, traffic
from planner.report.words import headline


def printed(renderable) -> str:
    file = io.StringIO()
    console(file).print(renderable)
    return file.getvalue()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_plan_table_holds_the_plan():
    lines = rows(printed(plan_table(make_plan(48))))
    text = [" ".join(words) for words in lines]
    assert "cpu:8, mesh data=4 model=2" in text
    assert "data parallel over data (4), Megatron column->row over model (2)" in text
    assert "step 12.4 ms = compute 10.0 ms + exposed communication 2.40 ms, 42.5 MB sent per device" in text
    assert "lower bound 12.4 ms, so no plan of this space is faster (exact)" in text
    assert "state.params.layers.*.w1 f32[768,3072] P(-, model) x48 216 MiB" in text
    assert "all_reduce data state.params.layers.*.w1 96 679 MB 38.4 ms" in text
    assert "activations 1.86 GiB 67%" in text
    assert "limit none" in text
    assert "Primitives without a rule, kept whole and priced by their bytes: fft x2." in text
    assert "planned in 1.10 s (trace 500 ms, space 100 ms, cost 200 ms, solve 300 ms)" in text
    assert "dot_general (gpt.py:88) f32[64,1024,3072] P(data, -, model) 95.4 MiB" in text
    assert (
        "Constants: measured on this host with numpy; `meshwright calibrate` measures the devices."
        in " ".join(text)
    )
    assert any(line.startswith("Not modelled: how the compiler orders ops anew") for line in text)
    assert "The batch is small." in text


def test_compare_names_the_reason_where_a_scheme_does_not_apply():
    text = [" ".join(words) for words in rows(printed(comparison_table(make_plan())))]
    assert "chosen data=4 model=2 12.4 ms 10.0 ms 2.40 ms 2.79 GiB 50.0 MB yes" in text
    assert any(line.startswith("tensor_3d the mesh has") for line in text)


def test_a_pipe_gets_plain_ascii_of_100_columns():
    text = printed(plan_table(make_plan(48)))
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_long_list_ends_in_a_sum():
    many = tuple(
        leaf(f"p{i}.{name}", (8, 2 * i + len(name)), ((), ()), 2**20)
        for i in range(15)
        for name in ("a", "bb")
    )
    text = [
        " ".join(words)
        for words in rows(printed(plan_table(dataclasses.replace(make_plan(), arguments=many))))
    ]
    assert "the rest x6 6.00 MiB" in text


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        (0.0124, "so no plan of this space is faster (exact)"),
        (0.0120, "so no plan of this space is more than 3.3% faster (exact)"),
        (0.0, "so nothing is proven about how good the plan is (exact)"),
    ],
)
def test_the_lower_bound_is_always_said(bound, said):
    plan: Plan = dataclasses.replace(make_plan(), lower_bound_seconds=bound)
    assert headline(plan)[3].endswith(said)


def test_measured_beside_predicted():
    text = [
        " ".join(words)
        for words in rows(printed(measured_table([Measured("data", 0.01, 0.02, (5.5, 3.25))])))
    ]
    assert "data 10.0 ms 20.0 ms 2.00 5.500 3.250" in text


def test_words_that_vary_are_listed():
    paths = [
        f"opt.0.{moment}.layers.{i}.{name}" for moment in ("mu", "nu") for i in range(2) for name in "qkv"
    ]
    groups = group_leaves([leaf(path, (8, 8), ((), ()), 4.0) for path in [*paths, "opt.0.mu.out"]])
    assert [(group.pattern, group.count, group.bytes) for group in groups] == [
        ("opt.0.{mu,nu}.layers.*.{q,k,v}", 12, 48.0),
        ("opt.0.mu.out", 1, 4.0),
    ]


def test_groups_keep_apart_what_differs():
    plan = make_plan(3)
    other = dataclasses.replace(plan.arguments[1], spec=((), ()))
    groups = group_leaves((plan.arguments[0], other, *plan.arguments[2:]))
    assert [(group.pattern, group.count) for group in groups[:2]] == [
        ("state.params.layers.*.w1", 2),
        ("state.params.layers.1.w1", 1),
    ]
    assert common(["a.0.b.1", "a.0.b.2"]) == "a.0.b.*"


def test_the_costliest_collective_comes_first():
    plan = make_plan()
    slow = dataclasses.replace(plan.collectives[0], kind="all_to_all", seconds=1.0)
    assert [group.kind for group in group_collectives((*plan.collectives, slow))] == [
        "all_to_all",
        "all_reduce",
    ]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(0.9999), "1.00 s"),
        (duration(0.99949), "999 ms"),
        (duration(1e-12), "0.00 ns"),
        (duration(float("inf")), "-"),
        (memory(float("inf")), "none"),
        (memory(1023), "1023 B"),
        (traffic(999), "999 B"),
        (traffic(999_999), "1.00 MB"),
        (quantity(2.25e15, "FLOP/s"), "2.25 PFLOP/s"),
    ],
)
def test_units(shown, expected):
    assert shown == expected


def test_machines_show_numbers_with_sources():
    listed = printed(machine_table(""))
    assert "tpu_v5e" in listed
    assert "gpu_h100_sxm_80gb" in listed
    text = [" ".join(words) for words in rows(printed(machine_table("tpu_v5e:4x4")))]
    assert text[0].startswith("tpu_v5e:4x4: 16 devices")
    assert "peak_flops_per_s_bf16 197 TFLOP/s docs.cloud.google.com/tpu/docs/v5e" in text
    data = machine_json("tpu_v5e:4x4")
    assert data["devices"] == 16
    assert all(row["source"] for row in data["numbers"].values())
    assert "tpu_v4" in machine_json("")["chips"]


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (
            "tpu_v5e:4x4",
            "Constants: as published, nothing measured on the devices; `meshwright calibrate` does.",
        ),
        (
            "cpu:8@a.json",
            "Constants: rates and collectives measured on the devices (a.json), the rest as published.",
        ),
        ("gpu_h100_sxm_80gb:2x8", "Overlap: every collective may run beside compute, as with XLA's latency"),
        ("cpu:8", "Overlap: nothing runs beside compute."),
    ],
)
def test_a_report_says_what_it_rests_on(machine, said):
    assert said in honesty(dataclasses.replace(make_plan(), machine=machine))[0]
