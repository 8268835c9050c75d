"""Collectives on GPUs: NCCL's own cost model with its constants, started by a launch.

Seconds = launch + base + steps * step + bytes sent / rate, the least over algorithms and protocols.
Constants: NVIDIA/nccl src/graph/tuning.cc, in seconds. Within a node: ring in three protocols, and for
all-reduce in-switch reduction (NVLS) where its rate is known. Across nodes only the Simple protocol: measured
all-reduces on four B200 nodes (stas00/ml-engineering network/README.md) lie on its ring, and far above the
other two. The tree has a step of log2(nodes) round trips (openxla/xla sol_gpu_cost_model), which is what they
take at 1 MiB.
"""

import math
from collections.abc import Mapping

from meshes.chip import Chip
from meshes.topology import Wire

Line = tuple[float, float]
Steps = Mapping[str, float]  # protocol -> seconds of a step inside a node

# All-reduces of 32 KiB (A100) and 1 MiB (H200, B200) take 44 to 51 us; NCCL's model explains 16 to 28.
LAUNCH_S = 2e-5
RING_BASE_S = {"LL": 6.6e-6, "LL128": 14e-6, "Simple": 8.4e-6}
# Over PCIe NCCL does not use LL128.
STEP_S = {
    "nvlink": {"LL": 0.6e-6, "LL128": 1.9e-6, "Simple": 3.4e-6},
    "pcie": {"LL": 1.0e-6, "Simple": 5.7e-6},
}
NETWORK_STEP_S = 14e-6
LL128_EFFICIENCY = 0.92
NVLS_S = 25e-6
TREE_BASE_S = 8.4e-6
TREE_NEAR_STEP_S = 4.0e-6
TREE_NETWORK_STEP_S = 68.89e-6
TREE_EFFICIENCY = 0.92


def gpu_lines(chip: Chip, kind: str, wires: tuple[Wire, ...]) -> tuple[Line, ...]:
    """(seconds, seconds per byte of the group's array) of every way NCCL may take."""
    inner = [wire for wire in wires if wire.kind in STEP_S]
    near = math.prod(wire.size for wire in inner)
    nodes = math.prod(wire.size for wire in wires if wire.kind == "network")
    network = min((wire.bandwidth for wire in wires if wire.kind == "network"), default=math.inf)
    ring = chip.ring_by_gpus.get(near, min((wire.bandwidth for wire in inner), default=math.inf))
    step_s = STEP_S[inner[0].kind if inner else "nvlink"]
    if kind == "permute":
        step = NETWORK_STEP_S if nodes > 1 else step_s["Simple"]
        return ((LAUNCH_S + RING_BASE_S["Simple"] + step, 1 / min(network, ring)),)
    if kind == "all_to_all":
        return (_all_to_all(near, nodes, ring, network, step_s),)
    if nodes == 1:
        return _in_node(chip, kind, near, ring, step_s)
    return _across(kind, near, nodes, min(ring, near * network), step_s)


def _in_node(chip: Chip, kind: str, near: int, ring: float, step_s: Steps) -> tuple[Line, ...]:
    turns = 2 if kind == "all_reduce" else 1
    steps, sent = turns * (near - 1), turns * (near - 1) / near
    rates = {
        "LL": min(ring / 2, chip.number("nccl_ll_bytes_per_s")),
        "LL128": LL128_EFFICIENCY * ring,
        "Simple": ring,
    }
    found = [
        (LAUNCH_S + RING_BASE_S[protocol] + steps * step, sent / rates[protocol])
        for protocol, step in step_s.items()
    ]
    if kind == "all_reduce" and near > 2 and "nvls_all_reduce_bytes_per_s" in chip.numbers:
        found.append(
            (LAUNCH_S + RING_BASE_S["Simple"] + NVLS_S, sent / chip.numbers["nvls_all_reduce_bytes_per_s"])
        )
    return tuple(found)


def _across(kind: str, near: int, nodes: int, rate: float, step_s: Steps) -> tuple[Line, ...]:
    """A ring through all GPUs, node by node; for all-reduce also a chain in each node and a tree of nodes."""
    group, turns = near * nodes, 2 if kind == "all_reduce" else 1
    far = 2 * nodes if kind == "all_reduce" else nodes - 1
    steps, sent = turns * (group - 1), turns * (group - 1) / group
    wait = max(steps - far, 0) * step_s["Simple"] + far * NETWORK_STEP_S
    found = [(LAUNCH_S + RING_BASE_S["Simple"] + wait, sent / rate)]
    if kind == "all_reduce":
        wait = 2 * ((near - 1) * TREE_NEAR_STEP_S + math.log2(nodes) * TREE_NETWORK_STEP_S)
        found.append((LAUNCH_S + TREE_BASE_S + wait, sent / (TREE_EFFICIENCY * rate)))
    return tuple(found)


def _all_to_all(near: int, nodes: int, ring: float, network: float, step_s: Steps) -> Line:
    """Each GPU sends 1/n^2 of the array to each other one, inside its node or over the network."""
    group = near * nodes
    wait = (near - 1) * step_s["Simple"] + (nodes - 1) * NETWORK_STEP_S
    slope = (near - 1) / group**2 / ring + (group - near) / group**2 / network
    return LAUNCH_S + RING_BASE_S["Simple"] + wait, slope
