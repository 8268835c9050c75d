"""The README is true: its Python runs, its commands and flags exist, and so do the files it names."""

import inspect
import os
import pathlib
import re
import shlex
import subprocess
import sys

from planner import api
from planner.__main__ import _COMMANDS, _flags

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_runs():
    code = "\n".join(blocks("python"))
    code += "\nassert step.plan.peak_bytes > 0 and float(metrics['loss']) < 1.0\n"
    flags = "--xla_force_host_platform_device_count=8"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_commands_and_flags_exist():
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("meshwright ")]
    assert {words[0] for words in commands} <= set(_COMMANDS)
    assert len(commands) >= 5
    for words in commands:
        _flags()(["meshwright", *words])  # raises for a flag that is not there, or a value of another type


def test_the_files_it_names_exist():
    named = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r"^(scripts/\w+)", README, re.MULTILINE)
    assert "scripts/demo" in named
    assert "LICENSE" in named
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_keywords_it_names_are_those_of_plan():
    rows = re.findall(r"^\| (`\w+`.*?) \|", README, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named <= set(inspect.signature(api.plan).parameters)
    assert "machine" in named
