"""Imports point one way: a file may import only from lower floors, and only the edge files import jax."""

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Floors from the ground up. Rooms of one inner tuple may import each other, those of different ones may not.
FLOORS = (
    (("planner.errors",), ("models",)),
    (("planner.graph",), ("meshes",)),
    (("planner.rules",), ("planner.sharding",)),
    (("planner.cost",),),
    (("planner.solvers",), ("planner.simulate",)),
    (
        (
            "planner.candidates",
            "planner.compiler_log",
            "planner.crowded",
            "planner.describe",
            "planner.hlo",
            "planner.hlo_flops",
            "planner.heap",
            "planner.hlo_text",
            "planner.inputs",
            "planner.matching",
            "planner.pins",
            "planner.planning",
            "planner.plans",
            "planner.program",
            "planner.refine",
            "planner.replica_groups",
            "planner.report",
            "planner.search",
            "planner.storage",
            "planner.trouble",
            "planner.verdict",
            "planner.whole",
            "planner.windowed",
        ),
    ),
    (
        (
            "meshes.calibrate",
            "meshes.devices",
            "planner.apply",
            "planner.compiled",
            "planner.jax_compat",
            "planner.layout",
            "planner.opaque",
            "planner.placed",
            "planner.rewrite",
            "planner.trace",
            "planner.training",
        ),
    ),
    (
        (
            "planner",
            "planner.__main__",
            "planner.api",
            "planner.arguments",
            "planner.clock",
            "planner.jobs",
            "planner.progress",
            "planner.solve_command",
            "planner.sweep",
            "planner.train_command",
        ),
    ),
)
EDGES = FLOORS[6][0]
ONLY = {  # rooms that see less than the floors below them
    "meshes": ("planner.errors",),
    "models": (),
    "planner.rules": ("planner.errors", "planner.graph"),
    "planner.solvers": ("planner.errors", "planner.cost.problem"),
}
JAX = ("flax", "jax", "jaxlib", "optax")


def module_of(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_of(path): path
    for top in ("meshes", "models", "planner")
    for path in sorted((ROOT / top).rglob("*.py"))
}


def room(module: str) -> tuple[int, int, str]:
    """Floor, inner tuple, and name of the room that holds a module; the longest name that fits."""
    found = [
        (len(name), floor, corner, name)
        for floor, corners in enumerate(FLOORS)
        for corner, names in enumerate(corners)
        for name in names
        if module == name or (module.startswith(name + ".") and name != "planner")
    ]
    assert found, f"{module} stands in no room; give it one in FLOORS of tests/test_layers.py."
    return max(found)[1:]


def imports(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Line and full module name of each import, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} has a relative import; write the full name."
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in FILES else str(node.module)


def offence(module: str, imported: str) -> str:
    """Why `module` may not import `imported`; '' if it may."""
    top = imported.split(".")[0]
    mine = room(module)
    if top in JAX:
        return "" if mine[2] in (*EDGES, "models") else "only the edge files and models may import jax"
    if top not in ("meshes", "models", "planner"):
        return ""
    theirs = room(imported)
    if mine[2] == theirs[2]:
        return ""
    if top == "models":
        return "" if mine[0] == len(FLOORS) - 1 else "only the top floor may use the models"
    allowed = ONLY.get(mine[2])
    if allowed is not None and not any(f"{imported}.".startswith(f"{name}.") for name in allowed):
        return f"{mine[2]} sees only {', '.join(allowed) or 'nothing of ours'}"
    if theirs[0] > mine[0]:
        return f"it stands on floor {theirs[0]}, above floor {mine[0]}"
    if theirs[0] == mine[0] and theirs[1] != mine[1]:
        return "the two rooms of one floor do not see each other"
    return ""


def test_imports_point_down():
    offenders = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}: {why}"
        for module, path in FILES.items()
        for line, imported in imports(path)
        if (why := offence(module, imported))
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    ("module", "imported", "why"),
    [
        ("planner.solvers.ilp", "jax.numpy", "only the edge files and models may import jax"),
        ("planner.solvers.ilp", "planner.cost.memory", "planner.solvers sees only planner.errors"),
        ("planner.api", "jax", "only the edge files and models may import jax"),
        ("planner.cost.memory", "planner.plans", "it stands on floor 5, above floor 3"),
        ("planner.graph.rule", "meshes.mesh", "the two rooms of one floor do not see each other"),
        ("meshes.mesh", "planner.graph.rule", "meshes sees only planner.errors"),
        ("models.gpt", "planner.errors", "models sees only nothing of ours"),
        ("planner.trace", "models", "only the top floor may use the models"),
        ("planner.trace", "jax", ""),
        ("planner.report.tables", "planner.plans", ""),
        ("planner.solvers.ilp", "planner.cost.problem", ""),
        ("meshes.mesh", "planner.errors", ""),
    ],
)
def test_offences_are_found(module, imported, why):
    found = offence(module, imported)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_lower_floors_do_not_load_jax():
    lower = [module for module in FILES if room(module)[0] <= 5 and room(module)[2] != "models"]
    code = (
        "import importlib, sys\n"
        f"for name in {lower!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'jax' not in sys.modules, name + ' loads jax'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
