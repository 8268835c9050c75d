"""The host's constants: sane when measured, cached, and measured again when the cache cannot be trusted."""

import dataclasses
import json
import pathlib

import pytest

from meshes import host as module
from meshes.host import Host, available_bytes, cache_path, host, measure

KNOWN = Host(5e10, 8e9, 1e-5, 1e-6, module._cores(), module._processor())


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """An empty cache directory, and a measurement that is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "measure", lambda: KNOWN)
    return tmp_path / "meshwright" / "host.json"


def test_measured_constants_are_those_of_a_computer():
    found = measure()
    assert 1e8 < found.flops_per_s < 1e14
    assert 1e8 < found.copy_bytes_per_s < 1e13
    assert 1e-7 < found.handover_s < 0.1
    assert 1e-8 < found.call_s < 1e-3
    assert found.cores >= 1
    assert available_bytes() > 2**20


def test_first_call_writes_what_the_second_reads(cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    assert cache_path() == cache
    assert host() == KNOWN
    assert json.loads(cache.read_text()) == dataclasses.asdict(KNOWN)
    monkeypatch.setattr(module, "measure", lambda: pytest.fail("measured although the cache holds it"))
    assert host() == KNOWN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps(dataclasses.asdict(KNOWN) | {"flops_per_s": "fast"}),
        json.dumps(dataclasses.asdict(KNOWN) | {"flops_per_s": -1.0}),
        json.dumps(dataclasses.asdict(KNOWN) | {"call_s": float("nan")}),
        json.dumps(dataclasses.asdict(KNOWN) | {"cores": 10_000}),
        json.dumps(dataclasses.asdict(KNOWN) | {"processor": "another"}),
    ],
)
def test_a_cache_not_to_be_trusted_is_measured_again(cache: pathlib.Path, text: str):
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    assert host() == KNOWN
    assert json.loads(cache.read_text()) == dataclasses.asdict(KNOWN)


def test_a_cache_that_cannot_be_written_is_done_without(cache: pathlib.Path):
    cache.parent.parent.joinpath("meshwright").write_text("a file where the directory should be")
    assert host() == KNOWN
