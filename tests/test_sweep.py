"""Less and less memory: what a plan keeps split comes out of the limit, not of flags."""

import itertools

import pytest
from small_steps import adam_args, adam_step

from planner.plans import Plan
from planner.sweep import sweep

# On two hosts, where what is gathered over the network costs something.
SMALL_BATCH = adam_args(batch=4096, inputs=2048, hidden=8192, outputs=2048)
MACHINE = "gpu_a100_sxm_80gb:2x8"


@pytest.fixture(scope="module")
def plans() -> list[tuple[float, Plan]]:
    return list(sweep(adam_step, *SMALL_BATCH, machine=MACHINE, seconds=3.0))


def state_bytes(plan: Plan) -> float:
    return sum(leaf.bytes for leaf in plan.arguments if leaf.path.startswith("state"))


def test_every_plan_keeps_to_its_limit_and_none_is_faster_than_one_with_more(plans):
    assert len(plans) >= 3
    for (fraction, plan), (less, leaner) in itertools.pairwise(plans):
        assert less < fraction
        assert leaner.peak_bytes <= leaner.limit_bytes < plan.peak_bytes
        assert leaner.step_seconds >= plan.step_seconds * (1 - 1e-9)


def test_the_report_says_what_each_plan_splits(plans):
    words = list(dict.fromkeys(plan.words for _, plan in plans))
    assert len(words) >= 2
    assert "fsdp" not in words[0]
    assert "fsdp" in words[-1]
    assert state_bytes(plans[-1][1]) <= state_bytes(plans[0][1])
