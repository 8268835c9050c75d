"""Machine files: a machine of the books with the rates that `meshwright calibrate` measured on its devices.

A file is one JSON object: the machine it was measured on, and per device, in SI units, the matmul rate by
dtype, the memory bandwidth, the overhead of an op, and for each collective over each kind of group a straight
line [seconds, seconds per byte] in the bytes that `meshes.collectives` counts. A group is named by its wires,
see `meshes.collectives.group_name`. Whatever is not measured stays as the books have it.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshes.machine import Machine, load_machine
from planner.errors import InputError

FORMAT = "meshwright-machine"
VERSION = 1
Line = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Measured:
    """machine: its text. flops_per_s: by dtype; bytes_per_s: read and written; overhead_s: of an op.
    collectives: (kind, group) -> line. about: when, and with what it was measured."""

    machine: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    overhead_s: float
    collectives: Mapping[tuple[str, str], Line]
    about: Mapping[str, str]


def as_json(found: Measured) -> dict[str, Any]:
    """What is written to a file."""
    lines: dict[str, dict[str, list[float]]] = {}
    for (kind, group), line in found.collectives.items():
        lines.setdefault(group, {})[kind] = list(line)
    plain = dataclasses.asdict(found) | {"collectives": lines}
    return {"format": FORMAT, "version": VERSION} | plain


def machine_of_file(path: str | os.PathLike[str]) -> Machine:
    """The machine of a file, named `MACHINE@PATH`. Raises InputError where the file holds anything else."""
    name, again = repr(os.fspath(path)), "Make it anew with `meshwright calibrate --out=FILE`."
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{name} cannot be read ({reason}). Check the path, or calibrate first.") from error
    except ValueError as error:
        raise InputError(f"{name} is not JSON ({error}). {again}") from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise InputError(f"{name} is no machine file of this Meshwright's. {again}")
    try:
        return calibrated(_measured(data), f"{data['machine']}@{os.fspath(path)}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{name} is damaged ({error!r}). {again}") from error


def _measured(data: Mapping[str, Any]) -> Measured:
    lines = {
        (kind, group): (float(line[0]), float(line[1]))
        for group, kinds in data["collectives"].items()
        for kind, line in kinds.items()
    }
    rates = {dtype: float(rate) for dtype, rate in data["flops_per_s"].items()}
    numbers = (float(data["bytes_per_s"]), float(data["overhead_s"]))
    wrong = [rate for rate in (*rates.values(), numbers[0]) if not rate > 0]
    if wrong:
        raise ValueError(f"a rate of {wrong[0]}")
    return Measured(data["machine"], rates, *numbers, lines, data["about"])


_KEYS = {"float32": "peak_flops_per_s_fp32", "bfloat16": "peak_flops_per_s_bf16"}


def calibrated(found: Measured, name: str) -> Machine:
    """The machine that was measured, with its rates in the place of the books'."""
    base = load_machine(found.machine)
    share = base.chip.devices_per_chip
    numbers = dict(base.chip.numbers)
    sources = dict(base.chip.sources)
    measured = f"measured ({', '.join(found.about.values())})"
    for dtype, rate in found.flops_per_s.items():
        numbers[_KEYS[dtype]], sources[_KEYS[dtype]] = rate * share, measured
    if "float32" in found.flops_per_s:
        numbers.pop("peak_flops_per_s_tf32", None)  # what float32 reaches is measured
    numbers["hbm_bandwidth_bytes_per_s"] = found.bytes_per_s * share
    sources["hbm_bandwidth_bytes_per_s"] = measured
    return dataclasses.replace(
        base,
        name=name,
        chip=dataclasses.replace(base.chip, numbers=numbers, sources=sources),
        hbm_bandwidth=found.bytes_per_s,
        hbm_efficiency=1.0,
        matmul_efficiency=1.0,
        overhead_seconds=found.overhead_s,
        measured=dict(found.collectives),
    )
