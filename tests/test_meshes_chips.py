"""Every chip file: loads, prints, names its units and its sources, and agrees with the data it came from."""

import importlib.resources
import json
import pathlib
import re

import pytest

from meshes.chip import chip_names, find_chip, read_chip
from meshes.describe import describe
from meshes.machine import load_machine
from meshes.topology import wraps_of
from planner.errors import InputError

FACTS = pathlib.Path(__file__).parent.parent / "../shared/facts/hardware.json"
UNITS = (
    "_per_s",
    "_bytes",
    "_s_per_hop",
    "_elements",
    "_chips",
    "_fraction",
    "_per_chip",
    "_per_host",
    "_per_node",
    "_per_gpu",
)


def lines_of(name: str) -> list[str]:
    return (importlib.resources.files("meshes") / "chips" / f"{name}.toml").read_text().splitlines()


def smallest(name: str) -> str:
    chip = read_chip(name)
    return f"{name}:{'x'.join(map(str, chip.slices[0]))}" if chip.kind == "tpu" else f"{name}:1x1"


def test_chip_names():
    assert chip_names() == (
        "gpu_a100_sxm_40gb",
        "gpu_a100_sxm_80gb",
        "gpu_b200",
        "gpu_gb200_nvl72",
        "gpu_gtx_1080ti",
        "gpu_h100_sxm_80gb",
        "gpu_h200_sxm_141gb",
        "gpu_k80",
        "gpu_l4",
        "gpu_v100_sxm2_16gb",
        "tpu_7x",
        "tpu_v4",
        "tpu_v5e",
        "tpu_v5p",
        "tpu_v6e",
    )


@pytest.mark.parametrize("name", chip_names())
def test_every_number_has_a_source_and_a_unit(name: str):
    table = ""
    for line in lines_of(name):
        table = line.partition("]")[0].strip("[") if line.startswith("[") else table
        pair = re.match(r"(\w+) = [\d.]", line)
        if pair:
            assert len(line.partition("  # ")[2]) > 5, f"{name}: no source in {line!r}"
            key = table or pair[1]
            assert any(unit in key for unit in UNITS), f"{name}: no unit in {key!r}"


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_loads_and_is_described(name: str):
    chip = read_chip(name)
    assert set(chip.numbers) <= set(chip.sources)
    rows = describe(load_machine(smallest(name)))
    assert len(rows) > len(chip.numbers)
    assert all(source for _, _, source in rows)
    assert all(value > 0 for value in chip.numbers.values())


def test_description_says_what_is_assumed():
    rows = {key: (value, source) for key, value, source in describe(load_machine("tpu_7x:4x4x4"))}
    assert rows["hbm_bytes"] == ("2.06158e+11 bytes", "docs.cloud.google.com/tpu/docs/tpu7x")
    assert rows["ici_latency_s_per_hop"] == ("1e-06 s", "assumed: that of other TPUs")
    assert rows["matmul_achieved_fraction"] == ("0.9", "assumed: measured on TPU v6e")
    ring = {key: value for key, value, _ in describe(load_machine("gpu_v100_sxm2_16gb:8"))}
    assert ring["nvlink_ring_bytes_per_s_by_gpus.2"] == "2.257e+10 bytes/s"


@pytest.mark.parametrize(
    ("spoken", "name"),
    [
        ("v5e", "tpu_v5e"),
        ("TPU v5 lite", "tpu_v5e"),
        ("v5litepod", "tpu_v5e"),
        ("Ironwood", "tpu_7x"),
        ("h100", "gpu_h100_sxm_80gb"),
        ("A100-40GB", "gpu_a100_sxm_40gb"),
        ("gb200", "gpu_gb200_nvl72"),
    ],
)
def test_aliases(spoken: str, name: str):
    assert find_chip(spoken).name == name


def test_unpublished_number_is_an_error_not_zero():
    with pytest.raises(InputError) as error:
        load_machine("gpu_l4:2x1")
    assert str(error.value) == (
        "gpu_l4 has no public value for 'node_egress_bandwidth_bytes_per_s', which this machine needs; "
        "choose a smaller machine or another chip, or add the number to meshes/chips/gpu_l4.toml."
    )


@pytest.mark.skipif(not FACTS.exists(), reason="the collected hardware data is not beside this checkout")
@pytest.mark.parametrize("name", [name for name in chip_names() if name.startswith("tpu")])
def test_slices_and_wraps_agree_with_the_collected_data(name: str):
    known = json.loads(FACTS.read_text())["devices"][name]["slices"]
    chip = read_chip(name)
    assert [list(shape) for shape in chip.slices] == [entry["shape"] for entry in known]
    for entry in known:
        shape = tuple(entry["shape"])
        assert list(wraps_of(chip, shape)) == entry["wrap"], shape
        text = f"{name}:{'x'.join(map(str, shape))}"
        assert load_machine(text).devices == entry["jax_devices"], text
