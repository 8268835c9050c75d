"""Calibration on CPU devices: it measures what it says, fits lines that are right, and its file is usable."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshes import calibrate
from meshes.collectives import KINDS
from meshes.machine import load_machine
from meshes.machine_file import as_json, calibrated
from planner.errors import InputError


@pytest.fixture
def quick(monkeypatch):
    """Small sizes and few runs: what is measured is poor, but all of it is measured."""
    monkeypatch.setattr(calibrate, "SIDES", (32,))
    monkeypatch.setattr(calibrate, "SIZES", (1 << 8, 1 << 10))
    monkeypatch.setattr(calibrate, "STREAMED", 1 << 10)
    monkeypatch.setattr(calibrate, "LONGEST", 4)
    monkeypatch.setattr(calibrate, "RUNS", 2)


def test_every_rate_of_a_machine_is_measured(quick):
    told = []
    found = calibrate.calibrate(load_machine("cpu:8"), lambda what, part: told.append((what, part)))
    groups = {"memory:2", "memory:4", "memory:8"}
    assert set(found.collectives) == {(kind, group) for kind in KINDS for group in groups}
    assert all(start >= 0 and slope >= 0 for start, slope in found.collectives.values())
    assert set(found.flops_per_s) == {"float32", "bfloat16"}
    assert min(*found.flops_per_s.values(), found.bytes_per_s, found.overhead_s) > 0
    assert [part for _, part in told] == sorted(part for _, part in told)
    machine = calibrated(found, "here")
    assert machine.peak_flops("float32") == found.flops_per_s["float32"]
    assert as_json(found)["machine"] == "cpu:8"


def test_a_line_through_points_is_found_again():
    sizes = np.array([1e3, 1e4, 1e5, 1e6])
    start, slope = calibrate.fitted(sizes, 5e-5 + 2e-9 * sizes)
    assert (start, slope) == (pytest.approx(5e-5), pytest.approx(2e-9))
    assert calibrate.fitted(sizes, np.array([4e-5, 3e-5, 2e-5, 1e-5]))[1] == 0.0
    assert calibrate.fitted(sizes, 1e-12 * sizes**1.5)[0] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_of_a_chain_moves_what_it_says(kind):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    collect = jax.shard_map(
        lambda x: calibrate._COLLECT[kind](x, ("x",), 4),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    x = jnp.arange(4.0 * 8)
    parts = np.array(x).reshape(4, 8)
    want = {
        "all_gather": np.concatenate([parts[0]] * 4),
        "all_reduce": np.concatenate([parts.sum(axis=0)] * 4),
        "all_to_all": parts.reshape(4, 4, 2).transpose(1, 0, 2).reshape(-1),
        "permute": parts[[3, 0, 1, 2]].reshape(-1),
        "reduce_scatter": np.concatenate(
            [np.concatenate([parts.sum(axis=0).reshape(4, 2)[i], parts[i][2:]]) for i in range(4)]
        ),
    }[kind]
    np.testing.assert_array_equal(np.array(collect(x)), want)


def test_too_few_devices_are_an_error():
    with pytest.raises(InputError, match="cpu:64 needs 64 devices but this process has 8"):
        calibrate.calibrate(load_machine("cpu:64"), lambda what, part: None)
