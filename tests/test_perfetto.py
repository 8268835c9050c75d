"""The trace: valid events, tracks that hold what they are named for, and sums that are the report's."""

import dataclasses
import json
from collections import defaultdict

import pytest

import planner
from planner.errors import InputError
from planner.plans import Plan
from planner.report.perfetto import EXPOSED, trace
from tests.handmade import make_plan
from tests.small_steps import adam_args, adam_step

LARGE = adam_args(batch=4096, inputs=2048, hidden=8192, outputs=2048)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.plan(adam_step, *LARGE, machine="gpu_h100_sxm_80gb:1x8", schemes=["fsdp"])


def by_track(events: list[dict]) -> dict[str, list[dict]]:
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return dict(found)


def test_every_event_is_one_that_perfetto_reads(plan):
    data = json.loads(json.dumps(trace(plan), allow_nan=False))
    assert set(data) == {"traceEvents", "displayTimeUnit"}
    for event in data["traceEvents"]:
        assert event["ph"] in ("M", "X", "C")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert isinstance(event["tid"], int)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert event["args"]["bytes"] >= 0
            assert event["ts"] >= 0


def test_slices_of_a_track_follow_each_other(plan):
    tracks = by_track(trace(plan)["traceEvents"])
    assert set(tracks) == {"compute", "nvlink", EXPOSED}
    for slices in tracks.values():
        end = 0.0
        for event in sorted(slices, key=lambda event: event["ts"]):
            assert event["ts"] >= end - 1e-6
            end = event["ts"] + event["dur"]
        assert end <= plan.step_seconds * 1e6 + 1e-6


def test_what_is_exposed_adds_up_to_the_reports(plan):
    tracks = by_track(trace(plan)["traceEvents"])
    assert sum(event["dur"] for event in tracks[EXPOSED]) * 1e-6 == pytest.approx(plan.exposed_seconds)
    spent = sum(event["dur"] for event in tracks["nvlink"]) * 1e-6
    assert spent == pytest.approx(sum(c.seconds * c.times for c in plan.collectives))
    assert plan.exposed_seconds < spent


def test_the_memory_counter_reaches_the_peak(plan):
    held = [e["args"]["bytes"] for e in trace(plan)["traceEvents"] if e["ph"] == "C"]
    assert max(held) == pytest.approx(plan.peak_bytes)


def test_a_plan_of_a_file_has_no_timeline():
    with pytest.raises(InputError, match=r"A plan read from a file has no timeline\. Plan again, with"):
        trace(dataclasses.replace(make_plan(), timeline=None))
