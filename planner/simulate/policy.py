"""What runs beside the compute: one policy for each way to run a step.

CPU     Nothing: a collective is a call that all threads meet in.
TPU     Read from programs compiled ahead of time by libtpu 0.0.42 with its default flags (steps of mlp, gpt
        and resnet, 9 layouts each), by what stands between a start and its done; the chip file says which
        kinds:
        - Permutes are asynchronous wherever they were seen, alone and in the loops around a matmul's parts.
        - All-gathers are on v5e, inside fusions with the ops beside them: of 142 of more than 1 MiB, 133 run
          beside at most 4 ops. On 7x they, and reduce-scatters, run on the SparseCores.
        - All-reduces and all-to-alls are not (one small all-reduce on 7x aside), nor is anything but permutes
          on v4, v5p and v6e.
GPU     XLA with its latency hiding scheduler: every collective has a stream of its own and runs while what
        does not depend on it is computed. NCCL's kernels take multiprocessors meanwhile: Calculon
        (github.com/calculon-ai/calculon) takes off 15% of the compute for NVLink and 2% for InfiniBand.

XLA schedules the body of a loop for itself, so nothing runs on from one iteration into the next.
"""

import dataclasses
from collections.abc import Mapping

from meshes.collectives import KINDS
from meshes.machine import Machine

_AHEAD = 4


@dataclasses.dataclass(frozen=True)
class Policy:
    """asynchronous: the kinds of collectives that run beside compute. ahead: the most matmuls that may stand
    between what brings an operand about and its reader. slowdown: the part of the compute that a transfer
    takes meanwhile, by kind of wire."""

    asynchronous: frozenset[str] = frozenset()
    ahead: int = _AHEAD
    slowdown: Mapping[str, float] = dataclasses.field(default_factory=dict)


def policy_of(machine: Machine) -> Policy:
    """How the compilers of today run a step on a machine."""
    chip = machine.chip
    if chip.kind == "gpu":
        return Policy(frozenset(KINDS), slowdown={"nvlink": 0.15, "network": 0.02})
    if chip.kind == "tpu":
        return Policy(frozenset(chip.asynchronous))
    return Policy()
