"""The machines there are, and one of them with the source of every number."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from meshes.chip import Chip, chip_names, read_chip
from meshes.machine import FORMS, Machine, load_machine
from planner.report.tables import columns, paragraph
from planner.report.units import duration, memory, quantity


def machine_table(text: str) -> RenderableType:
    """All chips, or the machine that `text` names. Raises InputError for a machine that does not exist."""
    return _constants(load_machine(text)) if text else _chips()


def machine_json(text: str) -> dict[str, Any]:
    """The same as plain data: numbers in SI units with their sources."""
    if text:
        machine = load_machine(text)
        return {"machine": machine.name, "devices": machine.devices} | _chip_json(machine.chip)
    return {"chips": {name: _chip_json(read_chip(name)) for name in chip_names()}}


def _chip_json(chip: Chip) -> dict[str, Any]:
    rows = {key: {"value": value, "source": chip.sources.get(key, "")} for key, value in chip.numbers.items()}
    return {"chip": chip.name, "numbers": rows}


def _chips() -> RenderableType:
    table = columns(
        "chips, per chip", name="left", bf16="right", memory="right", bandwidth="right", also_called="left"
    )
    for chip in map(read_chip, chip_names()):
        table.add_row(
            chip.name,
            _number(chip, "peak_flops_per_s_bf16"),
            _number(chip, "hbm_bytes"),
            _number(chip, "hbm_bandwidth_bytes_per_s"),
            ", ".join(chip.aliases),
        )
    forms = f"A machine is written as {FORMS}; with --machine=... its numbers are shown with their sources."
    return Group(table, paragraph(["", forms]))


def _number(chip: Chip, key: str) -> str:
    return show_number(key, chip.numbers[key]) if key in chip.numbers else "unknown"


def _constants(machine: Machine) -> Table:
    chip = machine.chip
    plural = "device" if machine.devices == 1 else "devices"
    title = f"{machine.name}: {machine.devices} {plural}; numbers per chip"
    table = columns(title, what="left", value="right", source="left")
    table.columns[0].no_wrap = True
    for key, value in chip.numbers.items():
        table.add_row(key, show_number(key, value), chip.sources.get(key, ""))
    for gpus, rate in machine.chip.ring_by_gpus.items():
        table.add_row(f"nvlink ring of {gpus} GPUs", quantity(rate, "B/s"), "measured; see the chip's file")
    for (kind, group), (start, slope) in machine.measured.items():
        rate = quantity(1 / slope, "B/s") if slope else "any size"
        table.add_row(f"{kind} over {group}", f"{duration(start)} + {rate}", "measured")
    if chip.kind == "cpu":  # all of it is measured, and nothing assumed
        return table
    if "matmul_achieved_fraction_bf16" not in chip.numbers:
        table.add_row("matmul efficiency", f"{machine.matmul_efficiency:g}", "assumed: none is published")
    table.add_row("overhead of an op", duration(machine.overhead_seconds), "assumed; see meshes/machine.py")
    return table


def show_number(key: str, value: float) -> str:
    """A number in the unit that its key ends in or holds.

    >>> show_number("peak_flops_per_s_bf16", 197e12), show_number("hbm_bytes", 17179869184)
    ('197 TFLOP/s', '16.0 GiB')
    >>> show_number("ici_latency_s", 1e-6), show_number("mxu_dim_elements", 128)
    ('1.00 us', '128')
    """
    if "flops_per_s" in key:
        return quantity(value, "FLOP/s")
    if "bytes_per_s" in key:
        return quantity(value, "B/s")
    if "_bytes" in key:
        return memory(value)
    if key.endswith("_s") or "_s_per_" in key:
        return duration(value)
    return f"{value:g}"
