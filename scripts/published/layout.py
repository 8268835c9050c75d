"""What a row's layout stands for: a machine, mesh axes with a role each, micro-batches, and what the runtime
does with its collectives.

What the columns leave open is read from the words of the row, by the rules in this file; a word that is not
there leaves the default. Nothing is looked up by the name of a model.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

from meshes.chip import Chip, find_chip, read_chip
from meshes.machine import Machine, load_machine
from planner.errors import PlannerError
from scripts.published.rows import Row

CHIPS = (  # the first pattern that the hardware's text holds
    (r"v5e|v5 ?lite", "tpu_v5e"),
    (r"v5p", "tpu_v5p"),
    (r"v4", "tpu_v4"),
    (r"v6e|trillium", "tpu_v6e"),
    (r"7x|ironwood", "tpu_7x"),
    (r"a100.*40 ?gb", "gpu_a100_sxm_40gb"),
    (r"a100", "gpu_a100_sxm_80gb"),
    (r"h200", "gpu_h200_sxm_141gb"),
    (r"h100", "gpu_h100_sxm_80gb"),
    (r"gb200", "gpu_gb200_nvl72"),
    (r"b200", "gpu_b200"),
    (r"v100", "gpu_v100_sxm2_16gb"),
)


class CannotPredict(PlannerError):
    """A row of a kind that the simulator does not know; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What a training framework's program does.

    fused_attention: attention is one kernel; attention: its speed over that of FlashAttention-2.
    hides_gathers: collectives of weights run beside compute. hides_reductions: so do those of gradients.
    hides_sums: so do those of activations (tensor parallelism), in parts. On a TPU the chip says which
    collectives do. eager: Python starts every kernel. dropout: of attention's weights.
    balances: pipeline stages are cut so that they take equally long. master: weights are kept in the compute
    type beside a float32 copy. splits: the optimizer's state is split over the data axes. optimizer, and that
    of models with experts: of `scripts/published/transformer.py`.
    """

    fused_attention: bool
    hides_gathers: bool = True
    hides_reductions: bool = True
    hides_sums: bool = False
    eager: bool = False
    dropout: bool = False
    balances: bool = False
    attention: float = 1.0
    master: bool = False
    splits: bool = False
    optimizer: str = "clipped_adamw"
    sparse_optimizer: str = "clipped_adamw"


# What a kernel that Python starts takes at least: a small matmul in PyTorch on A100 takes 21 us
# (PrincetonUniversity/LLMCompass ae/figure5).
EAGER_KERNEL_S = 21e-6
_LARGEST_SWEPT = 5  # powers of two, of sequences a device
# FlashAttention reaches 25 to 40% of an A100's peak, FlashAttention-2 50 to 73% (arXiv 2307.08691).
FIRST_FLASH = (0.25 + 0.40) / (0.50 + 0.73)
_XLA_TPU = Runtime(fused_attention=True)
# Weights of 16 bits with a float32 copy, AdamW, and Adafactor for models with experts: alpa-projects/alpa
# benchmark/alpa/benchmark_2d_one_case_{gpt_bert,moe}.py. Its reductions of gradients become reduce-scatters
# with the optimizer's state split (Alpa, arXiv 2201.12023, section 4.2).
_ALPA = Runtime(
    fused_attention=False,
    hides_gathers=False,
    hides_reductions=False,
    balances=True,
    master=True,
    splits=True,
    optimizer="adamw",
    sparse_optimizer="adafactor",
)
_MEGATRON = Runtime(fused_attention=False, hides_reductions=False, eager=True, dropout=True)
_RUNTIMES = (  # the first pattern that the source or the notes hold
    (r"megatron-lm baseline", _MEGATRON),
    (r"method data_parallel", dataclasses.replace(_ALPA, splits=False)),
    (r"alpa", _ALPA),
    (r"maxtext|axlearn|tpu-recipes|paxml|jax", Runtime(fused_attention=True)),
    (r"foundry|composer", Runtime(fused_attention=True, eager=True, attention=FIRST_FLASH)),
    (r"comm overlap options on", Runtime(fused_attention=True, hides_sums=True, eager=True)),
    (r"megatron|2205\.05198|calculon", _MEGATRON),
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """machine: that one pipeline stage runs on. axes: of its mesh, outermost first, with the size of each;
    roles: of each axis (`planner.sharding.named`). micro: sequences of one micro-batch over all data axes;
    runs: micro-batches of a step. stages, chunks: pipeline stages, and parts of a stage that take turns.
    free: whether a solver chose, within the memory; then `forced` if examples lie on the data axis and on no
    other. hop_rate: bytes/s of one device
    to the next stage."""

    machine: Machine
    axes: Mapping[str, int]
    roles: Mapping[str, str]
    micro: int
    runs: int
    stages: int
    chunks: int
    free: bool
    forced: bool
    runtime: Runtime
    hop_rate: float


def layout_of(row: Row) -> Layout:
    """The layout of a row. Raises CannotPredict where the row does not say enough, or asks for what there is
    no simulator of."""
    degrees = _degrees(row)
    if degrees["cp"] > 1:
        raise CannotPredict("context parallelism passes keys round in a ring, which the step does not do")
    if degrees["ep"] > 1:
        raise CannotPredict("expert parallelism has no scheme of its own yet")
    stages = degrees["pp"]
    axes = {axis: degrees[axis] for axis in ("dp", "fsdp", "tp") if degrees[axis] > 1} or {"dp": 1}
    machine = _machine(row, math.prod(axes.values()), stages)
    words = f"{row.source}; {row.notes}".lower()
    runtime = next((found for pattern, found in _RUNTIMES if re.search(pattern, words)), Runtime(True))
    if machine.chip.kind == "tpu":
        runtime = _XLA_TPU
    if "no flash attention" in words:
        runtime = dataclasses.replace(runtime, fused_attention=False)
    if "no gradient bucketing" in words:
        runtime = dataclasses.replace(runtime, hides_reductions=False)
    machine = _as_run(machine, runtime, row.dtype)
    micro, runs = _micro_batches(row, degrees["dp"] * degrees["fsdp"])
    return Layout(
        machine=machine,
        axes=axes,
        roles={axis: _role(axis, words, machine, runtime) for axis in axes},
        micro=micro,
        runs=runs,
        stages=stages,
        chunks=_chunks(row, stages),
        free=re.search(r"method auto_sharding|ilp free", words) is not None,
        forced="batch forced onto axis 0" in words,
        runtime=runtime,
        hop_rate=_hop_rate(row, machine, math.prod(axes.values())),
    )


def _as_run(machine: Machine, runtime: Runtime, dtype: str) -> Machine:
    """The machine as a runtime uses it. In fp8 and int8 the matmuls with weights run at that type's rate, and
    attention stays as it is."""
    narrow = re.search(r"fp8|int8", dtype)
    chip, key = machine.chip, "peak_flops_per_s_bf16"
    speed = chip.number(f"peak_flops_per_s_{narrow[0]}") / chip.number(key) if narrow else 1.0
    numbers = dict(chip.numbers) | ({key: chip.numbers[key] * speed} if narrow else {})
    return dataclasses.replace(
        machine,
        chip=dataclasses.replace(chip, numbers=numbers),
        launch_seconds=EAGER_KERNEL_S if runtime.eager else 0.0,
        attention_efficiency=machine.attention_efficiency * runtime.attention / speed,
    )


def sweep(layout: Layout) -> list[Layout]:
    """The layout with micro-batches of every size that is one, two, four, ... times the least."""
    batch, data = layout.micro * layout.runs, math.prod(n for a, n in layout.axes.items() if a != "tp")
    sizes = [data * 2**k for k in range(_LARGEST_SWEPT) if batch % (data * 2**k) == 0]
    return [dataclasses.replace(layout, micro=size, runs=batch // size) for size in sizes]


def _degrees(row: Row) -> dict[str, int]:
    if row.n_chips is None:
        raise CannotPredict("the number of chips is not given")
    found = {axis: getattr(row, axis) or 1 for axis in ("dp", "fsdp", "tp", "pp", "cp", "ep")}
    per_chip = _chip(row).devices_per_chip
    total = math.prod(found.values())
    if (row.dp, row.tp, row.pp) == (None, None, None) and total == 1:
        raise CannotPredict("the degrees of parallelism are not given")
    if total != row.n_chips * per_chip:
        if row.dp is None and row.n_chips * per_chip % total == 0:
            found["dp"] = row.n_chips * per_chip // total
        else:
            raise CannotPredict(f"the degrees multiply to {total}, not to {row.n_chips * per_chip} devices")
    return found


def _chip(row: Row) -> Chip:
    for pattern, name in CHIPS:
        if re.search(pattern, row.hardware.lower()):
            return read_chip(name)
    return find_chip(row.hardware)


def _role(axis: str, words: str, machine: Machine, runtime: Runtime) -> str:
    if axis == "tp":
        scattered = machine.chip.kind == "tpu" or re.search(
            r"sequence parallel(ism)? on|comm overlap|reduce-scatter", words
        )
        return "sequence" if scattered else "tensor"
    if re.search(r"shard_grad_op|zero_2|distributed optimizer|sharded optimizer/grads", words):
        return "zero1"
    if axis == "fsdp" or re.search(r"zero_3|method heuristic|shards the largest", words):
        return "fsdp"
    return "zero1" if runtime.splits else "data"


def _machine(row: Row, devices: int, stages: int) -> Machine:
    chip = _chip(row)
    if chip.kind == "tpu":
        return _tpu(row, chip, devices, stages)
    gpus = min(int(chip.number("gpus_per_node")), devices)
    if devices % gpus:
        raise CannotPredict(f"{devices} GPUs do not fill nodes of {gpus}")
    machine = load_machine(f"{chip.name}:{devices // gpus}x{gpus}")
    rate = _node_rate(row, int(chip.number("gpus_per_node")))
    if rate is None:
        return machine
    wires = tuple(
        dataclasses.replace(w, bandwidth=rate) if w.kind == "network" and w.size > 1 else w
        for w in machine.topology.wires
    )
    return dataclasses.replace(machine, topology=dataclasses.replace(machine.topology, wires=wires))


def _hop_rate(row: Row, machine: Machine, devices: int) -> float:
    """Bytes/s of one device over the network, which the devices of a stage share in their node; of a pipeline
    inside of one node, over NVLink. devices: of a stage."""
    chip = machine.chip
    if chip.kind == "tpu":
        return chip.number("dcn_bandwidth_bytes_per_s_per_chip") / chip.devices_per_chip
    gpus = int(chip.number("gpus_per_node"))
    if (row.n_chips or 0) <= gpus:
        return chip.number("nvlink_bandwidth_bytes_per_s_oneway")
    stated = _node_rate(row, gpus)
    own = chip.numbers.get("ib_bandwidth_bytes_per_s_oneway_per_gpu")
    if own:  # an adapter each
        return stated or own
    whole = stated * gpus if stated else chip.number("node_egress_bandwidth_bytes_per_s")
    return whole / min(devices, gpus)


def _node_rate(row: Row, gpus: int) -> float | None:
    """Bytes/s of the network for one GPU, where the row says what its nodes have."""
    words = f"{row.hardware}; {row.source}".lower()
    each = re.search(r"(\d+) ?gb(?:/s|ps) per gpu", words)
    if each:
        return int(each[1]) * 1e9 / 8
    node = re.search(r"(\d+) ?gb(?:/s|ps)", words)
    return int(node[1]) * 1e9 / 8 / gpus if node else None


def _tpu(row: Row, chip: Chip, devices: int, stages: int) -> Machine:
    if stages > 1:
        raise CannotPredict("pipeline stages on a TPU slice have no wires assigned yet")
    chips = row.n_chips or 0
    shape = re.search(r"\((\d+x\d+(?:x\d+)?)", row.hardware)
    named = re.search(r"v[45]p?-(\d+)", row.hardware.lower())
    if shape:
        size = math.prod(map(int, shape[1].split("x")))
    elif named:
        size = int(named[1]) // 2  # the name counts cores, two a chip
    else:
        size = chips
    if chips % size:
        raise CannotPredict(f"{chips} chips are no whole slices of {size}")
    listed = [s for s in chip.slices if math.prod(s) == size]
    if not listed:
        raise CannotPredict(f"{chip.name} has no slice of {size} chips")
    best = shape[1] if shape else "x".join(map(str, min(listed, key=lambda s: max(s) / min(s))))
    slices = chips // size
    return load_machine(f"{chip.name}:{best}" + (f"*{slices}" if slices > 1 else ""))


def _micro_batches(row: Row, data: int) -> tuple[int, int]:
    """(sequences of a micro-batch, micro-batches of a step)."""
    batch, words = row.global_batch_sequences, row.notes.lower()
    if batch is None or row.seq_len is None:
        raise CannotPredict("the batch or the sequence length is not given")
    each = re.search(r"micro ?batch (\d+)", words)
    count = re.search(r"(\d+) (?:microbatches|gradient accumulation steps)", words)
    if each:
        micro = int(each[1]) * data
    elif count:
        micro = batch // int(count[1])
    else:
        micro = data if (row.pp or 1) > 1 else batch
    micro = min(micro, batch)
    if micro == 0 or batch % micro or micro % data:
        raise CannotPredict(f"a batch of {batch} does not divide into micro-batches of {micro} over {data}")
    return micro, batch // micro


def _chunks(row: Row, stages: int) -> int:
    """Parts of a pipeline stage that take turns (interleaving)."""
    words = row.notes.lower()
    direct = re.search(r"interleave (\d+)", words)
    layers = re.search(r"(\d+) layers per virtual stage", words)
    if stages == 1 or not row.layers:
        return 1
    if direct:
        return int(direct[1])
    return max(1, row.layers // stages // int(layers[1])) if layers else 1
