"""What is known of a machine, as rows for people: constant, value with unit, source."""

from meshes.machine import ASSUMED_MATMUL_FRACTION, Machine
from meshes.topology import ASSUMED_DCN_LATENCY_S, ASSUMED_ICI_LATENCY_S

_UNITS = (("flops_per_s", "FLOP/s"), ("bytes_per_s", "bytes/s"), ("bytes", "bytes"))


def describe(machine: Machine) -> list[tuple[str, str, str]]:
    """Every number of the chip (per chip) with its public source, then those assumed for want of one."""
    chip = machine.chip
    rows = [
        (key, f"{value:.6g} {unit_of(key)}".strip(), chip.sources[key]) for key, value in chip.numbers.items()
    ]
    rows += [
        (f"nvlink_ring_bytes_per_s_by_gpus.{gpus}", f"{rate:.6g} bytes/s", chip.sources[str(gpus)])
        for gpus, rate in chip.ring_by_gpus.items()
    ]
    return rows + _assumed(machine)


def unit_of(key: str) -> str:
    """The unit that a chip file's key names.

    >>> unit_of("hbm_bandwidth_bytes_per_s"), unit_of("ici_latency_s_per_hop"), unit_of("gpus_per_node")
    ('bytes/s', 's', '')
    """
    for part, unit in _UNITS:
        if part in key:
            return unit
    return "s" if key.endswith("_s") or "_s_per_" in key else ""


def _assumed(machine: Machine) -> list[tuple[str, str, str]]:
    chip, numbers = machine.chip, machine.chip.numbers
    if chip.kind == "cpu":
        return []
    rows = [
        (
            "overhead_s_per_op",
            f"{machine.overhead_seconds:g} s",
            "assumed: XLA's launch constant, openxla/xla",
        )
    ]
    if "matmul_achieved_fraction_bf16" not in numbers:
        like = {"tpu": "TPU v6e", "gpu": "H100"}[chip.kind]
        rows.append(
            (
                "matmul_achieved_fraction",
                f"{ASSUMED_MATMUL_FRACTION[chip.kind]:g}",
                f"assumed: measured on {like}",
            )
        )
    if chip.kind == "tpu":
        if "ici_latency_s_per_hop" not in numbers:
            rows.append(
                ("ici_latency_s_per_hop", f"{ASSUMED_ICI_LATENCY_S:g} s", "assumed: that of other TPUs")
            )
        rows.append(
            ("dcn_latency_s", f"{ASSUMED_DCN_LATENCY_S:g} s", "assumed: 10 to 100 us, none is published")
        )
    return rows
