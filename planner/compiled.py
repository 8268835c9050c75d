"""JAX edge: compiles a planned step, for the devices of this process or, ahead of time, for a TPU that is not
here.

The compiler of a TPU is the library libtpu, which needs no TPU. What it must know is in the environment
before it is loaded, and it takes a lock on the whole machine unless it is told that several may run.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import queue
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.experimental import topologies

from meshes.machine import Machine
from planner.apply import ShardedStep
from planner.compiler_log import listening
from planner.errors import CompileError, InputError
from planner.heap import FLAGS, Held, held, written
from planner.hlo_text import sources
from planner.jax_compat import state_partners
from planner.program import Program

_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # any will do: the topology says what to compile for
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "1",  # warnings, which are read while it compiles
    "TPU_WORKER_HOSTNAMES": "localhost",
}

_GOOGLE = "0x1ae0"  # the vendor of a TPU on the PCI bus


def expect_tpu(machine: str) -> None:
    """To be called before jax starts its devices, where a program for `machine` is to be compiled: on a host
    without TPUs, keeps jax from loading libtpu to look for some."""
    buses = pathlib.Path("/sys/bus/pci/devices").glob("*/vendor")
    if not machine.startswith("tpu_") or any(path.read_text().strip() == _GOOGLE for path in buses):
        return
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not getattr(jax.config, "jax_platforms", None):
        jax.config.update("jax_platforms", "cpu")


def devices_of(machine: Machine) -> tuple[list[Any], str]:
    """The devices to compile for, and what they are, in words: those of this process where they are of the
    machine's kind, else a TPU's that only the compiler knows.

    Raises InputError where neither can be had.
    """
    expect_tpu(machine.name)
    here = jax.devices()
    kind = machine.chip.kind
    if here[0].platform == kind and (kind == "cpu" or here[0].device_kind in machine.chip.device_kinds):
        return here, f"the {here[0].device_kind} devices of this process"
    if kind == "tpu":
        return _tpu_devices(machine), f"{machine.name}, ahead of time"
    raise InputError(
        f"A program for {machine.name} cannot be compiled here, where jax has {here[0].platform} devices. "
        f"Verify on such a machine, or plan for cpu:{machine.devices} and verify that."
    )


def _tpu_devices(machine: Machine) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            f"Compiling for {machine.name} needs the TPU compiler, which is not installed. Get it with "
            "`pip install 'meshwright[tpu]'`; no TPU is needed."
        )
    if machine.slices > 1:
        raise InputError(
            f"{machine.name} has {machine.slices} slices, and what a program sends between slices is not "
            f"read yet. Verify a plan for {machine.name.split('*')[0]}."
        )
    chip, _, shape = machine.name.removeprefix("tpu_").partition(":")
    sides = (
        (*machine.shape, 1)[:3] if len(machine.shape) < 3 and chip in ("v4", "v5p", "7x") else machine.shape
    )
    name = f"{'tpu' if chip[0].isdigit() else ''}{chip}:{'x'.join(map(str, sides)) or shape}"
    cores = (
        {"chip_config_name": "megacore"} if chip == "v4" else {}
    )  # two cores as one device, as jax has them
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **cores).devices)
    except Exception as error:  # whatever libtpu says of a topology, or of a jax it does not fit
        versions = f"libtpu {importlib.metadata.version('libtpu')} with jax {jax.__version__}"
        raise InputError(
            f"The TPU compiler here ({versions}) has nothing for {machine.name}: "
            f"{str(error).splitlines()[0].rstrip('.')}. Choose another slice, or install the libtpu of this "
            "jax: `pip install 'meshwright[tpu]'`."
        ) from error


def compile_step(step: ShardedStep, compiler: str, *, whole: bool = True) -> Program:
    """Compiles a sharded step, runs nothing, and reads what came of it. compiler: for the report. whole: for
    a TPU, False waits for its buffers only, which takes about a tenth of the time; the compiler then goes on
    until the process ends, and how the results lie in memory is not looked at.

    Raises CompileError where XLA refuses the program.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # a flag says which
        lowered = step.lower()
    platform = step.mesh.devices.flat[0].platform
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            with listening(platform) as heard:
                if platform == "tpu":
                    compiled, found, text = _with_buffers(lowered, pathlib.Path(folder), whole)
                else:
                    compiled = lowered.compile()
                    found, text = _analysed(compiled), compiled.as_text() or ""
        except Exception as error:  # whatever XLA says
            raise _refused(str(error), heard.largest, compiler) from error
    frames = sources(text)
    return Program(
        compiler=compiler,
        text=text,
        argument_bytes=found.arguments,
        output_bytes=found.outputs,
        alias_bytes=found.aliases,
        temporary_bytes=found.temporaries,
        donated=step.traced.donated,
        partners=state_partners(step.traced),
        seconds=time.monotonic() - started,
        moved=dict(_moved(step, compiled)) if compiled else {},
        remade=tuple((one.shape, os.path.basename(one.source(frames))) for one in heard.remade),
        deaf=heard.deaf,
    )


def _analysed(compiled: Any) -> Held:
    found = compiled.memory_analysis()
    return Held(
        arguments=float(found.argument_size_in_bytes),
        outputs=float(found.output_size_in_bytes),
        aliases=float(found.alias_size_in_bytes),
        temporaries=float(found.temp_size_in_bytes),
    )


def _with_buffers(lowered: Any, folder: pathlib.Path, whole: bool) -> tuple[Any, Held, str]:
    """(the compiled program or None, what it holds, its text), read from what a TPU's compiler writes on its
    way; it is compiled in a thread, which is left alone as soon as the buffers are there if not `whole`."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    options = {"xla_dump_to": str(folder), **FLAGS}
    work = threading.Thread(target=_compile_into, args=(lowered, options, ended), daemon=True)
    work.start()
    found = None
    while work.is_alive() and (whole or found is None):
        work.join(0.2)
        found = None if whole else written(folder)
    done = ended.get() if not work.is_alive() else None
    if isinstance(done, BaseException):
        raise done
    found = found or written(folder)
    if found:
        return done, held(found[0]), found[1]
    assert done is not None, "left the compiler alone too early"
    return done, _analysed(done), done.as_text() or ""  # a version that writes other files


def _compile_into(lowered: Any, options: dict[str, Any], ended: "queue.SimpleQueue[Any]") -> None:
    try:
        ended.put(lowered.compile(compiler_options=options))
    except BaseException as error:  # raised again where it is waited for
        ended.put(error)


def _refused(error: str, largest: Sequence[str], compiler: str) -> CompileError:
    short = re.search(r"\(([\d.]+\w+)\) exceeds available HBM \(([\d.]+\w+)\)", error)
    if short:
        needed, given = short.groups()
        names = ", ".join(largest[:3])
        return CompileError(
            f"The planned step does not fit when compiled for {compiler}: it needs {needed} of the {given} "
            f"that a device has{f'; its largest arrays are {names}' if names else ''}. Plan with a smaller "
            "memory_fraction."
        )
    first = error.strip().splitlines()[0].rstrip(".") if error.strip() else "no message"
    return CompileError(
        f"The planned step does not compile for {compiler}: {first}. Report it with the plan."
    )


def _moved(step: ShardedStep, compiled: Any) -> Iterator[tuple[int, str]]:
    """(flat argument, how the result that replaces it differs from it), as the program was compiled: what
    makes the next step move it first, or compile again."""
    with jax.set_mesh(step.mesh):
        made = jax.tree.leaves(jax.eval_shape(_as_called(step), *step.abstract()))
    enters, leaves = jax.tree.leaves(step.in_shardings), jax.tree.leaves(compiled.output_formats)
    layouts = [form.layout for form in jax.tree.leaves(compiled.input_formats)]
    for index, result in state_partners(step.traced).items():
        wanted, got = step.traced.arguments[index], made[result]
        if got.weak_type:
            yield index, "a weak type instead of a strong one"
        elif got.dtype != wanted.dtype:
            yield index, f"{got.dtype} instead of {wanted.dtype}"
        elif leaves[result].sharding != enters[index]:
            yield index, f"{leaves[result].sharding.spec} instead of {enters[index].spec}"
        elif layouts[index] is not None and leaves[result].layout != layouts[index]:
            yield index, "another layout in memory"


def _as_called(step: ShardedStep) -> Any:
    """The step as a function of its arrays alone, its static arguments in their places."""

    def call(*arrays: Any) -> Any:
        given = list(arrays)
        for position, value in step.traced.statics:
            given.insert(position, value)
        return step(*given)

    return call
