"""JAX edge: measures the devices of this process, for a machine file.

Every figure is the slope of a chain: one jitted program does the same thing k times, each time with the
result of the one before, and the seconds of a link are (t[k] - t[1]) / (k - 1); what it takes to start a
program falls out. Of several runs the fastest counts. All devices work at the same time, as they do in a
step.

    matmul        chains of rows x side x side on each device, by side; the rate is that of the best
    memory        a chain of sums of large arrays, which read and write
    overhead      a chain of matmuls of 8 x 8
    collective    for each kind of group of the machine's meshes, and each kind of collective: chains at
                  several sizes, and the straight line through them that is off by the least in relative terms
"""

import datetime
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike

from meshes.collectives import KINDS, group_name
from meshes.devices import check_devices, jax_mesh
from meshes.machine import Machine
from meshes.machine_file import Line, Measured
from meshes.mesh import LogicalMesh, enumerate_meshes

SIDES = (128, 256, 512)
STREAMED = 1 << 22  # elements of each array on each device
SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22)  # bytes on each device
LEAST_S, LONGEST, RUNS = 0.01, 256, 5
DTYPES = ("float32", "bfloat16")
Progress = Callable[[str, float], None]
Body = Callable[..., Any]


def calibrate(machine: Machine, progress: Progress) -> Measured:
    """What the devices of this process do; they have to be those of the machine. Takes some minutes.
    Raises InputError where there are too few."""
    devices = jax.devices()
    check_devices(machine, devices)
    used = devices[: machine.devices]
    flat = Mesh(np.array(used), ("all",))
    progress("matmuls", 0.0)
    rates = {dtype: max(_matmul(flat, dtype, side) for side in SIDES) for dtype in DTYPES}
    progress("memory", 0.1)
    bandwidth, overhead = _bandwidth(flat), _overhead(flat)
    groups = _groups(machine)
    lines: dict[tuple[str, str], Line] = {}
    for number, (name, (mesh, axes)) in enumerate(groups.items()):
        progress(f"collectives over {name}", 0.2 + 0.8 * number / len(groups))
        physical = jax_mesh(mesh, used)
        for kind in KINDS:
            lines[kind, name] = _line(physical, axes, kind)
    about = {
        "date": datetime.date.today().isoformat(),
        "devices": f"{machine.devices} x {used[0].device_kind}",
        "jax": jax.__version__,
    }
    return Measured(machine.name.partition("@")[0], rates, bandwidth, overhead, lines, about)


def _groups(machine: Machine) -> dict[str, tuple[LogicalMesh, tuple[str, ...]]]:
    """Each kind of group of the machine, with a mesh and axes that have it: one axis, or all of two."""
    found: dict[str, tuple[LogicalMesh, tuple[str, ...]]] = {}
    for mesh in enumerate_meshes(machine, 2):
        for axes in (*((axis,) for axis in mesh.axes), mesh.axes):
            wires = [wire for axis in axes for wire in mesh.wires[mesh.axes.index(axis)]]
            if wires:
                found.setdefault(group_name(wires), (mesh, axes))
    return found


def link_seconds(body: Body, *args: Any) -> float:
    """Seconds of one more application of `body`, each after the one before. The chain is as long as it takes
    for its seconds to stand out."""
    one, links = _chain(body, 1), 4
    start = _fastest(one, args)
    while True:
        more = _fastest(_chain(body, 1 + links), args) - start
        if more > LEAST_S or links >= LONGEST:
            return max(more, 1e-6) / links
        links *= 4


def _chain(body: Body, count: int) -> Body:
    def chain(*args: Any) -> Any:
        for _ in range(count):
            args = body(*args)
        return args

    return jax.jit(chain)


def _fastest(run: Body, args: Sequence[Any]) -> float:
    """Seconds of the run that was least disturbed; the first, which compiles, does not count."""
    jax.block_until_ready(run(*args))
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        jax.block_until_ready(run(*args))
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _placed(mesh: Mesh, shape: tuple[int, ...], dtype: str, spec: PartitionSpec) -> Any:
    return jax.device_put(jnp.full(shape, 1e-3, dtype), NamedSharding(mesh, spec))


def _matmul(mesh: Mesh, dtype: str, side: int) -> float:
    """FLOP/s of one device, for squares on each."""
    rows = _placed(mesh, (mesh.size * side, side), dtype, PartitionSpec("all"))
    weight = _placed(mesh, (side, side), dtype, PartitionSpec())
    spent = link_seconds(lambda x, w: (x @ w, w), rows, weight)
    return 2 * side**3 / spent


def _bandwidth(mesh: Mesh) -> float:
    """Bytes/s that one device reads and writes: two arrays in, one out."""
    shape = (mesh.size * STREAMED,)
    some, other = (_placed(mesh, shape, "float32", PartitionSpec("all")) for _ in range(2))

    def added(x: Any, y: Any) -> tuple[Any, Any]:
        return y, jax.lax.optimization_barrier(x + y)

    return 3 * 4 * STREAMED / link_seconds(added, some, other)


def _overhead(mesh: Mesh) -> float:
    """Seconds of an op with next to nothing to do."""
    rows = _placed(mesh, (mesh.size * 8, 8), "float32", PartitionSpec("all"))
    weight = _placed(mesh, (8, 8), "float32", PartitionSpec())
    return link_seconds(lambda x, w: (x @ w, w), rows, weight)


def _line(mesh: Mesh, axes: tuple[str, ...], kind: str) -> Line:
    """Seconds of a collective as start + bytes * slope, bytes as `meshes.collectives` counts them."""
    count = int(np.prod([mesh.shape[axis] for axis in axes]))
    whole = {"permute": 1, "all_reduce": 1}.get(kind, count)  # of the bytes on one device
    seconds = [_collective(mesh, axes, kind, size // 4) for size in SIZES]
    return fitted([size * whole for size in SIZES], seconds)


def fitted(sizes: ArrayLike, seconds: ArrayLike) -> Line:
    """(start, slope), neither below zero, that is off by the least in relative terms.

    >>> start, slope = fitted([0.0, 1e6, 2e6], [1e-3, 2e-3, 3e-3])
    >>> round(start, 9), round(slope, 15)
    (0.001, 1e-09)
    """
    x, t = np.asarray(sizes, float), np.asarray(seconds, float)
    terms = np.stack([1 / t, x / t], axis=1)
    (start, slope), *_ = np.linalg.lstsq(terms, np.ones(len(t)), rcond=None)
    if slope < 0:
        return float(np.exp(np.log(t).mean())), 0.0
    if start < 0:
        return 0.0, float((x / t).sum() / ((x / t) ** 2).sum())
    return float(start), float(slope)


def _collective(mesh: Mesh, axes: tuple[str, ...], kind: str, elements: int) -> float:
    """Seconds with so many float32 on each device: its part of a gather, and the whole of what is
    scattered."""
    count = int(np.prod([mesh.shape[axis] for axis in axes]))
    elements = max(elements // count, 1) * count  # a device's array is cut into as many parts
    spec = PartitionSpec(mesh.axis_names)
    array = _placed(mesh, (mesh.size * elements,), "float32", spec)

    def one(x: Any) -> Any:
        return _COLLECT[kind](x, axes, count)

    mapped = jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return link_seconds(lambda x: (mapped(x),), array)


def _gather(x: Any, axes: tuple[str, ...], count: int) -> Any:
    return jax.lax.all_gather(x, axes, tiled=True)[: x.shape[0]]


def _scatter(x: Any, axes: tuple[str, ...], count: int) -> Any:
    return jax.lax.dynamic_update_slice(x, jax.lax.psum_scatter(x, axes, tiled=True), (0,))


def _permute(x: Any, axes: tuple[str, ...], count: int) -> Any:
    return jax.lax.ppermute(x, axes, list(itertools.pairwise([*range(count), 0])))


# Each leaves as much on a device as it found there, for the next one to begin with.
_COLLECT: dict[str, Callable[[Any, tuple[str, ...], int], Any]] = {
    "all_gather": _gather,
    "all_reduce": lambda x, axes, count: jax.lax.psum(x, axes),
    "all_to_all": lambda x, axes, count: jax.lax.all_to_all(x, axes, 0, 0, tiled=True),
    "permute": _permute,
    "reduce_scatter": _scatter,
}
