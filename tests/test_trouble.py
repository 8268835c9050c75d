"""What is said when nothing fits: the bytes that are short, and remedies, each of which is tried here."""

import dataclasses
import re

import pytest
from small_steps import adam_args, adam_step, sgd_args, sgd_step

import planner
from meshes.machine import load_machine
from planner.errors import InfeasibleError


def refused(step, args, **keywords) -> str:
    with pytest.raises(InfeasibleError) as caught:
        planner.plan(step, *args, **keywords)
    assert caught.value.exit_status == 3
    return str(caught.value)


def remedies(message: str) -> list[str]:
    return message.removesuffix(".").partition("What would make it fit: ")[2].split("; or ")


def short(message: str) -> float:
    (count,) = re.findall(r"\((\d+) bytes\) more than the limit", message)
    return float(count)


LARGE = adam_args(batch=512, inputs=2**15, hidden=2**15, outputs=2**15)


@pytest.fixture(scope="module")
def too_large() -> str:
    return refused(adam_step, LARGE, machine="tpu_v5e:2x4", mesh={"x": 8}, memory_fraction=0.2)


def test_a_model_that_is_too_big_is_told_how_much_is_short(too_large):
    """12 bytes for each of 2 * 2^30 parameters on 8 devices of 16 GiB: 3 GiB each, and the gradients."""
    message = too_large
    assert message.startswith("No plan fits: the leanest one found needs ")
    limit = 0.2 * 16 * 2**30
    state = 12 * 2 * 2**30 / 8
    assert state < limit < state + short(message)
    held = dict(re.findall(r"(optimizer state|parameters) ([\d.]+) GiB", message))
    assert held == {"optimizer state": "2.00", "parameters": "1.00"}


def test_more_of_the_memory_is_the_first_remedy_and_enough():
    args = adam_args(inputs=2**15, hidden=2**15, outputs=2**15)
    message = refused(adam_step, args, machine="tpu_v5e:2x4", mesh={"x": 8}, memory_fraction=0.2)
    (fraction,) = re.findall(r"^memory_fraction=(\S+) instead of 0.2$", remedies(message)[0])
    plan = planner.plan(
        adam_step, *args, machine="tpu_v5e:2x4", mesh={"x": 8}, memory_fraction=float(fraction)
    )
    assert plan.peak_bytes <= plan.limit_bytes
    refused(adam_step, LARGE, machine="tpu_v5e:2x4", mesh={"x": 8}, memory_fraction=float(fraction) - 0.01)


def test_a_smaller_batch_is_a_remedy_where_the_examples_are_what_is_large():
    machine = dataclasses.replace(load_machine("gpu_h100_sxm_80gb:1x8"), memory_bytes=2.0**20)
    args = sgd_args(batch=2**18)
    message = refused(sgd_step, args, machine=machine, mesh={"x": 8})
    (smaller,) = re.findall(r"a batch of (\d+) instead of 262144", message)
    plan = planner.plan(sgd_step, *sgd_args(batch=int(smaller)), machine=machine, mesh={"x": 8})
    assert plan.peak_bytes <= plan.limit_bytes
    refused(sgd_step, sgd_args(batch=2 * int(smaller)), machine=machine, mesh={"x": 8})


def test_a_smaller_batch_is_no_remedy_where_the_state_alone_is_too_large():
    message = refused(
        adam_step, adam_args(inputs=2**18, hidden=2**18, outputs=2**18), machine="tpu_v5e:2x4", mesh={"x": 8}
    )
    assert "a batch of" not in message
    assert "memory_fraction" not in message


@pytest.mark.parametrize(
    ("small", "fraction"),
    [
        ("tpu_v5e:2x2", 0.5),
        pytest.param("tpu_v5e:16x16", 0.005, marks=pytest.mark.slow),
        ("gpu_h100_sxm_80gb:1x4", 0.1),
    ],
)
def test_more_devices_are_a_remedy_that_was_tried(small, fraction):
    message = refused(adam_step, LARGE, machine=small, memory_fraction=fraction)
    ((count, had, name, mesh),) = re.findall(r"(\d+) devices instead of (\d+) \((\S+), mesh (.*?)\)", message)
    larger = load_machine(name)
    assert (larger.devices, load_machine(small).devices) == (int(count), int(had))
    sizes = {axis: int(size) for axis, _, size in (part.partition("=") for part in mesh.split(" x "))}
    plan = planner.plan(adam_step, *LARGE, machine=name, memory_fraction=fraction, mesh=sizes)
    assert plan.peak_bytes <= plan.limit_bytes


def test_devices_with_more_memory_are_the_last_resort():
    """More devices of one host share the same memory, and no part of it is enough."""
    machine = dataclasses.replace(load_machine("cpu:8"), memory_bytes=1000.0)
    message = refused(sgd_step, sgd_args(), machine=machine, mesh={"x": 8})
    ((needed,),) = (
        re.findall(r"^devices with (\d+) bytes of memory each$", text) for text in remedies(message)
    )
    enough = dataclasses.replace(machine, memory_bytes=float(needed))
    plan = planner.plan(sgd_step, *sgd_args(), machine=enough, mesh={"x": 8})
    assert plan.peak_bytes <= plan.limit_bytes


def test_the_bytes_that_are_short_are_those_of_the_limit():
    machine = dataclasses.replace(load_machine("cpu:8"), memory_bytes=1000.0)
    missing = short(refused(sgd_step, sgd_args(), machine=machine, mesh={"x": 8}))
    limit = 0.9 * 1000.0
    enough = dataclasses.replace(machine, memory_bytes=(limit + missing + 1) / 0.9)
    assert planner.plan(sgd_step, *sgd_args(), machine=enough, mesh={"x": 8}).peak_bytes > limit


def in_the_way(message: str) -> str:
    (sentence,) = re.findall(r"On the mesh .*? however they are sharded: .*?\.(?= What)", message)
    return sentence


def test_the_fewest_values_that_cannot_be_held_together_are_named(too_large):
    """Six arrays of 0.5 GiB a device and one gradient: without any of them the rest are within 3.20 GiB."""
    sentence = in_the_way(too_large)
    assert sentence.startswith("On the mesh x=8, these take 3.50 GiB at the same time, ")
    assert "state.{mean,params,square}.{w1,w2} x6 (3.00 GiB)" in sentence
    assert len(re.findall(r"\([\d.]+ [GM]iB\)", sentence)) == 2


def test_a_pin_that_is_in_the_way_is_named_with_its_bytes_and_can_be_left_out():
    args = adam_args(inputs=2**15, hidden=2**15, outputs=2**15)
    pins = {"state.mean.w1": (None, None), "batch.x": ("x", None), "state.square.w1": ("x", None)}
    choices = {"machine": "tpu_v5e:2x4", "mesh": {"x": 8}, "memory_fraction": 0.4}
    message = refused(adam_step, args, pins=pins, **choices)
    assert "state.mean.w1 pinned to P(-, -) (4.00 GiB)" in in_the_way(message)
    assert "square.w1 pinned" not in message
    assert "no pin on state.mean.w1" in remedies(message)
    del pins["state.mean.w1"]
    plan = planner.plan(adam_step, *args, pins=pins, **choices)
    assert plan.peak_bytes <= plan.limit_bytes


def test_only_as_many_pins_are_to_blame_as_have_to_go():
    args = adam_args(inputs=2**15, hidden=2**15, outputs=2**15)
    pins = {f"state.{kind}.w1": (None, None) for kind in ("mean", "params", "square")}
    choices = {"machine": "tpu_v5e:2x4", "mesh": {"x": 8}, "memory_fraction": 0.8}
    message = refused(adam_step, args, pins=pins, **choices)
    ((first, more),) = re.findall(r"no pin on state\.(\w+)\.w1(?: and (\d+) more like it)?", message)
    assert first == "mean"
    count = 1 + int(more or 0)
    assert count < len(pins)
    fewer = dict(list(pins.items())[count:])
    assert planner.plan(adam_step, *args, pins=fewer, **choices).peak_bytes <= 0.8 * 16 * 2**30
    refused(adam_step, args, pins=dict(list(pins.items())[count - 1 :]), **choices)


def test_pins_that_are_not_in_the_way_are_not_blamed():
    pins = {"batch.x": ("x", None), "state.params.w1": ("x", None)}
    message = refused(adam_step, LARGE, machine="tpu_v5e:2x4", mesh={"x": 8}, memory_fraction=0.2, pins=pins)
    assert "pin" not in message.partition("What would make it fit")[2]
    assert "pinned" not in message
