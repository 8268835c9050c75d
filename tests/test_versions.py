"""The same sharded step on every other Python of this machine that has jax: the surface that changes is real.

Interpreters are looked for on PATH and under ~/.pyenv, or named in MESHWRIGHT_PYTHONS (paths with the path
separator between them).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = """
import jax, jax.numpy as jnp
from conftest import make_mesh
from hand_plans import close, found_in, hand_plan, kinds, pin_by_shape
from planner.apply import apply
from planner.jax_compat import trace_step
from test_apply import arguments, train_step, values, SPLIT, ROWS
from test_rewrite import cuboid, mlp_arguments, mlp_step, scanned, sharded_mlp

step = sharded_mlp(cuboid(), make_mesh(x=2, y=2, z=2))
assert kinds(found_in(step)) == {"all-gather": 12, "reduce-scatter": 11}, kinds(found_in(step))
close(step(*mlp_arguments()), jax.jit(mlp_step)(*mlp_arguments()))

mesh = make_mesh(x=4, y=2)
traced = trace_step(train_step, arguments(), static_argnums=2)
plan = hand_plan(traced, mesh, {}, {"state.w": SPLIT, "batch": ROWS}, {"result.0.w": SPLIT})
step = apply(plan, traced, mesh)
state = step.put(arguments()[0])
for _ in range(2):
    state, out = step(state, *arguments()[1:])

args = [jax.random.normal(jax.random.key(0), (8, 8)), jax.random.normal(jax.random.key(1), (3, 8, 8))]
traced = trace_step(scanned, args)
sites = pin_by_shape(traced.closed_jaxpr, {(8, 8): SPLIT})
close(apply(hand_plan(traced, mesh, sites), traced, mesh)(*args), jax.jit(scanned)(*args))
print("jax", jax.__version__)
"""


def candidates() -> list[str]:
    named = os.environ.get("MESHWRIGHT_PYTHONS", "")
    if named:
        return [path for path in named.split(os.pathsep) if path]
    on_path = [shutil.which(f"python3.{minor}") for minor in range(11, 16)]
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob("*/bin/python"))
    return [path for path in (*on_path, *map(str, pyenv)) if path]


def others() -> list[str]:
    """Interpreters other than this one that import jax and pytest, one per version of Python."""
    probe = (
        "import sys, jax, pytest; print(sys.version_info >= (3, 11) and '%d.%d' % sys.version_info[:2] or '')"
    )
    found: dict[str, str] = {}
    for path in candidates():
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([path, "-c", probe], capture_output=True, text=True, env=env, check=False)
        version = done.stdout.strip()
        if version and version != f"{sys.version_info[0]}.{sys.version_info[1]}":
            found.setdefault(version, path)
    return list(found.values())


@pytest.mark.slow
def test_the_same_step_runs_on_other_versions_of_jax():
    interpreters = others()
    if not interpreters:
        pytest.skip("no other Python with jax and pytest found; name some in MESHWRIGHT_PYTHONS")
    for path in interpreters:
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
        done = subprocess.run([path, "-c", SCRIPT], capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, f"{path}:\n{done.stderr[-3000:]}"
        assert done.stdout.startswith("jax ")
