"""Wires: what joins the devices of a machine, with one-way bandwidth and latency.

Devices are numbered by the wires of a topology, outermost first, as JAX numbers them: slices, then the torus
axes x, y, z, then the dies of one chip; or nodes, then the GPUs of a node.
"""

import dataclasses
import math
from typing import Literal

from meshes.chip import Chip, Shape

Kind = Literal["ici", "die", "dcn", "nvlink", "pcie", "network", "memory"]

# The scaling book's order-of-magnitude hop. Where a chip file has no figure (TPU 7x) this one is taken.
ASSUMED_ICI_LATENCY_S = 1e-6
# No figure is published for the data-centre network; 10 to 100 us is the range that planners try.
ASSUMED_DCN_LATENCY_S = 3e-5


@dataclasses.dataclass(frozen=True)
class Wire:
    """`size` devices in a row on one kind of wire.

    name: the physical wire ('ici0', 'node'). bandwidth: bytes/s one way from a device to its next one, as one
    group sees it when all groups use the wire at once. latency: seconds per hop or step. wraps: whether the
    last device has a link to the first. stride: links of the physical wire between neighbours of this row; a
    row that is a part of a torus axis shares its links with `stride` groups, which `bandwidth` accounts for.
    whole: whether the row is all of the physical wire.
    """

    name: str
    kind: Kind
    size: int
    bandwidth: float
    latency: float
    wraps: bool = False
    stride: int = 1
    whole: bool = True

    def part(self, size: int, stride: int) -> "Wire":
        """Every `stride`-th device of this wire, `size` of them."""
        if size == self.size:
            return self
        shared = stride if self.kind in ("ici", "die") else 1
        return dataclasses.replace(
            self,
            size=size,
            stride=stride,
            bandwidth=self.bandwidth / shared,
            latency=self.latency * shared,
            wraps=self.wraps and size * stride == self.size,
            whole=False,
        )


@dataclasses.dataclass(frozen=True)
class Topology:
    """wires: outermost first; their sizes multiply to the number of devices. A size of 1 is kept, since JAX
    counts three torus axes on every TPU."""

    wires: tuple[Wire, ...]

    @property
    def shape(self) -> Shape:
        return tuple(wire.size for wire in self.wires)

    @property
    def devices(self) -> int:
        return math.prod(self.shape)


def tpu_topology(chip: Chip, shape: Shape, slices: int) -> Topology:
    """Slices over the data-centre network, torus axes, and the dies of a chip where JAX shows them apart.

    Rates are per device: two devices of one chip share its links and its network card.
    """
    share = chip.devices_per_chip
    rate = chip.number("ici_bandwidth_bytes_per_s_oneway_per_link") / share
    latency = chip.numbers.get("ici_latency_s_per_hop", ASSUMED_ICI_LATENCY_S)
    padded = shape + (1,) * (3 - len(shape))
    torus = [
        Wire(f"ici{axis}", "ici", size, rate, latency, wraps)
        for axis, (size, wraps) in enumerate(zip(padded, wraps_of(chip, padded), strict=True))
    ]
    card = chip.number("dcn_bandwidth_bytes_per_s_per_chip") / share
    dcn = Wire("dcn", "dcn", slices, card, ASSUMED_DCN_LATENCY_S)
    dies = []
    if share > 1:
        dies = [Wire("die", "die", share, chip.number("die_link_bandwidth_bytes_per_s_oneway"), latency)]
    return Topology((dcn, *torus, *dies))


def wraps_of(chip: Chip, shape: Shape) -> tuple[bool, ...]:
    """Which torus axes are rings, by the rule in the chip's file."""
    if "wrap_length_chips" in chip.numbers:
        return tuple(size == chip.numbers["wrap_length_chips"] for size in shape)
    multiple = int(chip.number("wrap_multiple_chips"))
    return (all(size % multiple == 0 for size in shape),) * len(shape)


def gpu_topology(chip: Chip, nodes: int, gpus: int) -> Topology:
    """Nodes over InfiniBand or Ethernet, then an NVLink island or, where the chip has no NVLink, a PCIe tree.

    Latencies are NCCL's: see `meshes.nccl`.
    """
    near: Kind = "nvlink" if "nvlink_links_per_gpu" in chip.numbers else "pcie"
    wires = [Wire("node", "network", 1, math.inf, 0.0), Wire(near, near, 1, math.inf, 0.0)]
    if nodes > 1:
        wires[0] = Wire("node", "network", nodes, _network_rate(chip, gpus), 0.0)
    if gpus > 1:
        wires[1] = Wire(near, near, gpus, _ring_rate(chip, near), 0.0)
    return Topology(tuple(wires))


def _ring_rate(chip: Chip, near: Kind) -> float:
    """Bytes/s that NCCL's rings move inside a node."""
    if near == "pcie":
        return chip.number("nccl_pcie_ring_bytes_per_s")
    return chip.number("nccl_ring_bytes_per_s_per_link") * chip.number("nvlink_links_per_gpu")


def _network_rate(chip: Chip, gpus: int) -> float:
    """Bytes/s out of one GPU's node for that GPU: its own card, or its share of the node's."""
    if "ib_bandwidth_bytes_per_s_oneway_per_gpu" in chip.numbers:
        return chip.numbers["ib_bandwidth_bytes_per_s_oneway_per_gpu"]
    return chip.number("node_egress_bandwidth_bytes_per_s") / gpus


def host_topology(devices: int, copy_bandwidth: float, handover: float) -> Topology:
    """Devices of one host process: they share its memory, so each copies at its share of the host's rate.

    In a collective every thread waits twice, for the others to come and for them to be done, and the threads
    are woken one after the other: `handover` seconds each.
    """
    return Topology((Wire("memory", "memory", devices, copy_bandwidth / devices, 2 * devices * handover),))
