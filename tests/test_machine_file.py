"""Machine files: what was measured takes the place of the books', the rest stays; what is wrong is said."""

import json

import pytest

from meshes import collectives
from meshes.machine import cpu_devices, load_machine
from meshes.machine_file import Measured, as_json
from meshes.mesh import mesh_of
from planner.errors import InputError

LINES = {("all_reduce", "memory:8"): (1e-4, 2e-9), ("all_gather", "memory:4"): (2e-4, 0.0)}
FOUND = Measured("cpu:8", {"float32": 5e9}, 2e9, 3e-6, LINES, {"date": "2026-01-01", "jax": "0.10.2"})


@pytest.fixture
def path(tmp_path) -> str:
    file = tmp_path / "host.json"
    file.write_text(json.dumps(as_json(FOUND)))
    return str(file)


def test_what_is_measured_is_used(path):
    machine = load_machine(path)
    assert machine.name == f"cpu:8@{path}"
    assert load_machine(machine.name) == machine
    assert cpu_devices(path) == cpu_devices(machine.name) == cpu_devices("cpu:8") == 8
    assert (machine.peak_flops("float32"), machine.hbm_bandwidth) == (5e9, 2e9)
    assert (machine.overhead_seconds, machine.matmul_efficiency) == (3e-6, 1.0)
    assert machine.chip.sources["peak_flops_per_s_fp32"] == "measured (2026-01-01, 0.10.2)"


def test_measured_groups_have_their_lines_and_others_those_of_the_books(path):
    machine, book = load_machine(path), load_machine("cpu:8")
    flat, grid = mesh_of(machine, {"x": 8}), mesh_of(machine, {"x": 2, "y": 4})

    def seconds(which, mesh, kind, *axes):
        return collectives.seconds(which, mesh, kind, axes, 1e6)

    assert seconds(machine, flat, "all_reduce", "x") == pytest.approx(1e-4 + 2e-3)
    assert seconds(machine, grid, "all_reduce", "x", "y") == pytest.approx(1e-4 + 2e-3)
    assert seconds(machine, grid, "all_gather", "y") == pytest.approx(2e-4)
    assert seconds(machine, grid, "all_gather", "x") == seconds(book, grid, "all_gather", "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"is not JSON \(.*\)\. Make it anew with `meshwright calibrate --out=FILE`\."),
        ("[]", r"is no machine file of this Meshwright's\."),
        (json.dumps(as_json(FOUND) | {"version": 9}), r"is no machine file of this Meshwright's\."),
        (json.dumps(as_json(FOUND) | {"bytes_per_s": 0}), r"is damaged \(ValueError\('a rate of 0\.0'\)\)\."),
        (json.dumps(as_json(FOUND) | {"flops_per_s": 3}), r"is damaged \(AttributeError\("),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, said):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(InputError, match=said):
        load_machine(str(file))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"'nowhere\.json' cannot be read \(No such file or directory\)\."):
        load_machine("nowhere.json")
