"""Machine: so many chips, joined so. `load_machine("tpu_v5e:4x4")` reads one line of text.

tpu_v5p:4x4x4           a TPU slice, its shape in chips
tpu_v5e:16x16*2         two slices over the data-centre network
gpu_h100_sxm_80gb:4x8   four nodes of eight GPUs; `:8` is one node
cpu:8                   eight devices of this host's cores
machine.json            what `meshwright calibrate` measured; its name is then cpu:8@machine.json
"""

import dataclasses
import math
import re
from collections.abc import Mapping

from meshes.chip import Chip, Shape, chip_names, find_chip
from meshes.host import Host, available_bytes, host
from meshes.topology import Topology, gpu_topology, host_topology, tpu_topology
from planner.errors import InputError

FORMS = "'tpu_v5p:4x4x4', 'tpu_v5e:16x16*2' (two slices), 'gpu_h100_sxm_80gb:4x8' (4 nodes of 8) or 'cpu:8'"

# The best matmul that users of a chip report, over its peak, for chips without a report of their own: TPU v6e
# reaches 0.90 (AI-Hypercomputer/accelerator-microbenchmarks), H100 0.80 (stas00/ml-engineering).
ASSUMED_MATMUL_FRACTION = {"tpu": 0.90, "gpu": 0.80}
# The part of the memory's bandwidth that long copies reach, for chips without a report of their own: TPU v6e
# has 0.83 (AI-Hypercomputer/accelerator-microbenchmarks), A100 0.77 (PrincetonUniversity/LLMCompass), H100
# 0.94 (jax-ml/scaling-book).
ASSUMED_HBM_FRACTION = 0.85
# The part of the peak that an attention kernel reaches: FlashAttention-2 has 50 to 73% on A100 (arXiv
# 2307.08691). Where a chip has no report of its own the lower end is taken.
ASSUMED_ATTENTION_FRACTION = 0.50
# What one op costs beyond its roofline: XLA's GPU cost model takes 1 us a kernel launch (openxla/xla), and a
# small add on H100 takes 1.3 us over its roofline (jax-ml/scaling-book). Nothing is published for TPU: the
# same is assumed.
ASSUMED_OVERHEAD_S = 1e-6

_PEAK_KEYS = {
    "bfloat16": ("bf16", "fp32"),
    "float16": ("fp16", "bf16", "fp32"),
    "float32": ("tf32", "fp32", "bf16"),
    "int8": ("int8", "bf16", "fp16"),
    "uint8": ("int8", "bf16", "fp16"),
    "int4": ("int4", "int8", "bf16", "fp16"),
    "uint4": ("int4", "int8", "bf16", "fp16"),
    "float8": ("fp8", "bf16", "fp16"),
    "float4": ("fp4", "fp8", "bf16", "fp16"),
}


@dataclasses.dataclass(frozen=True)
class Machine:
    """A number of equal devices and the wires between them. All rates are per device, as JAX shows devices.

    name: canonical text, which `load_machine` reads back. shape: of one slice in chips, or (nodes, GPUs).
    memory_bytes, hbm_bandwidth (bytes/s): of one device. matmul_efficiency: the part of the peak that large
    matmuls reach; attention_efficiency: the part of it that an attention kernel reaches. hbm_efficiency: the
    part of the bandwidth that long copies reach. mxu_dim: side of the matrix unit in elements, 0 if there is
    none. multiprocessors: of a GPU, else 0. overhead_seconds: per op, beyond its roofline. launch_seconds:
    the least an op takes, where a host starts each one. measured: (kind of collective, name of the group) ->
    its (seconds, seconds per byte), where a machine file has it.
    """

    name: str
    chip: Chip = dataclasses.field(hash=False)
    shape: Shape = dataclasses.field(hash=False)
    slices: int = dataclasses.field(hash=False)
    topology: Topology = dataclasses.field(hash=False)
    memory_bytes: float = dataclasses.field(hash=False)
    hbm_bandwidth: float = dataclasses.field(hash=False)
    matmul_efficiency: float = dataclasses.field(hash=False)
    mxu_dim: int = dataclasses.field(hash=False)
    overhead_seconds: float = dataclasses.field(hash=False)
    hbm_efficiency: float = dataclasses.field(default=1.0, hash=False)
    attention_efficiency: float = dataclasses.field(default=1.0, hash=False)
    multiprocessors: int = dataclasses.field(default=0, hash=False)
    launch_seconds: float = dataclasses.field(default=0.0, hash=False)
    measured: Mapping[tuple[str, str], tuple[float, float]] = dataclasses.field(
        default_factory=dict, hash=False
    )

    @property
    def devices(self) -> int:
        """How many devices JAX shows."""
        return self.topology.devices

    @property
    def cores(self) -> int:
        """How many cores share the work of one device: 2 on TPU v4 and v5p, else 1."""
        return int(self.chip.numbers.get("cores_per_chip", 1)) // self.chip.devices_per_chip or 1

    @property
    def scratchpad_bytes(self) -> float:
        """Memory on the chip that a compiler keeps whole arrays in, of one device; 0 if there is none."""
        return self.chip.numbers.get("vmem_bytes", 0.0) / self.chip.devices_per_chip

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s of a dense matmul on one device, for a numpy dtype name such as 'bfloat16'.

        Where a rate is not published: float32 on a GPU is TF32 and on a TPU one bf16 pass, which is what
        JAX's default matmul precision does; 8- and 4-bit types run at the next wider published rate; float64
        and complex64 at half of float32, complex128 at a quarter; other integers and booleans at float32's
        rate.
        """
        if dtype in ("float64", "complex64"):
            return self.peak_flops("float32") / 2
        if dtype == "complex128":
            return self.peak_flops("float32") / 4
        family = re.sub(r"_e\dm\d.*", "", dtype)
        numbers = self.chip.numbers
        for key in _PEAK_KEYS.get(dtype, _PEAK_KEYS.get(family, _PEAK_KEYS["float32"])):
            rate = numbers.get(f"peak_flops_per_s_{key}")
            if rate is not None:
                return rate / self.chip.devices_per_chip
        return self.chip.number("peak_flops_per_s_fp32") / self.chip.devices_per_chip


def machine_names() -> tuple[str, ...]:
    """What may stand before the colon of a machine's text."""
    return ("cpu", *chip_names())


def load_machine(text: str) -> Machine:
    """The machine of one line of text; see the module for the forms.

    Raises InputError for text of another form, an unknown chip, a topology that does not exist, and a machine
    file that cannot be read.
    """
    if text.endswith(".json"):
        from meshes.machine_file import machine_of_file  # which makes its machine from one of the books

        return machine_of_file(text.rpartition("@")[2])
    parts = re.fullmatch(
        r"\s*(?P<chip>[^:*]+?)\s*:\s*(?P<shape>\d+(?:x\d+)*)\s*(?:\*\s*(?P<slices>\d+)\s*)?", text
    )
    if parts is None:
        chip, colon, _ = text.partition(":")
        if chip.strip() and not colon and chip.strip() != "cpu":
            find_chip(chip.strip())
        raise InputError(f"Machine {text!r} is not of the form CHIP:SHAPE; write it as {FORMS}.")
    shape = tuple(map(int, parts["shape"].split("x")))
    slices = int(parts["slices"] or 1)
    if 0 in shape or slices == 0:
        raise InputError(
            f"Machine {text!r} has a size of zero; give every size as at least 1, as in {FORMS}."
        )
    if parts["chip"] == "cpu":
        return _cpu_machine(text, shape, slices)
    chip = find_chip(parts["chip"])
    return _tpu_machine(chip, shape, slices) if chip.kind == "tpu" else _gpu_machine(chip, shape, slices)


def cpu_devices(text: str) -> int:
    """How many devices of this host's the machine of a text has, 0 if it is another machine, or none."""
    if text.endswith(".json"):
        machine = load_machine(text)
        return machine.devices if machine.chip.kind == "cpu" else 0
    return int(text[4:]) if text.startswith("cpu:") and text[4:].isdecimal() else 0


def _tpu_machine(chip: Chip, shape: Shape, slices: int) -> Machine:
    listed = {tuple(sorted(known)): known for known in chip.slices}
    if tuple(sorted(shape)) not in listed:
        raise InputError(
            f"{chip.name} has no slice of shape {_text(shape)}; the nearest are {_near(shape, chip.slices)}."
        )
    shape = listed[tuple(sorted(shape))]
    name = f"{chip.name}:{_text(shape, slices)}"
    return _machine(name, chip, shape, slices, tpu_topology(chip, shape, slices))


def _near(shape: Shape, slices: tuple[Shape, ...]) -> str:
    """Two or three listed shapes with about as many chips."""
    chips = math.prod(shape)
    order = sorted(slices, key=lambda known: (abs(math.log(math.prod(known) / chips)), known))
    return ", ".join(_text(known) for known in sorted(order[:3], key=math.prod))


def _gpu_machine(chip: Chip, shape: Shape, slices: int) -> Machine:
    limit = int(chip.number("gpus_per_node"))
    nodes, gpus = math.prod(shape[:-1]), shape[-1]
    if len(shape) > 2 or slices > 1:
        raise InputError(
            f"{chip.name} machines are NODESxGPUS, which {_text(shape, slices)} is not; "
            f"write {chip.name}:4x{limit} for four nodes of {limit}."
        )
    if gpus > limit:
        total = nodes * gpus
        remedy = f"{max(total // limit, 1)}x{limit}"
        raise InputError(
            f"A node of {chip.name} has at most {limit} GPUs, not {gpus}; write {chip.name}:{remedy}."
        )
    return _machine(f"{chip.name}:{nodes}x{gpus}", chip, (nodes, gpus), 1, gpu_topology(chip, nodes, gpus))


def _machine(name: str, chip: Chip, shape: Shape, slices: int, topology: Topology) -> Machine:
    numbers, share = chip.numbers, chip.devices_per_chip
    return Machine(
        name=name,
        chip=chip,
        shape=shape,
        slices=slices,
        topology=topology,
        memory_bytes=chip.number("hbm_bytes") / share,
        hbm_bandwidth=chip.number("hbm_bandwidth_bytes_per_s") / share,
        matmul_efficiency=numbers.get("matmul_achieved_fraction_bf16", ASSUMED_MATMUL_FRACTION[chip.kind]),
        mxu_dim=int(numbers.get("mxu_dim_elements", 0)),
        overhead_seconds=ASSUMED_OVERHEAD_S,
        hbm_efficiency=numbers.get("hbm_achieved_fraction", ASSUMED_HBM_FRACTION),
        attention_efficiency=numbers.get("attention_achieved_fraction", ASSUMED_ATTENTION_FRACTION),
        multiprocessors=int(numbers.get("multiprocessors_per_chip", 0)),
    )


def _cpu_machine(text: str, shape: Shape, slices: int) -> Machine:
    if len(shape) > 1 or slices > 1:
        raise InputError(
            f"Machine {text!r} gives the host's cores a shape; write cpu:{math.prod(shape) * slices}."
        )
    return cpu_machine(math.prod(shape), host(), available_bytes())


def cpu_machine(devices: int, known: Host, memory: int) -> Machine:
    """`devices` devices of one host: they share its cores and memory, so each has its part of every rate.

    memory: bytes of the whole host.
    """
    source = "measured on this host with numpy; rates and memory are one device's share"
    traffic = 2 * known.copy_bytes_per_s / devices  # a copy reads and writes each byte
    numbers = {
        "peak_flops_per_s_fp32": known.flops_per_s / devices,
        "hbm_bandwidth_bytes_per_s": traffic,
        "hbm_bytes": memory / devices,
        "handover_s": known.handover_s,
        "call_s": known.call_s,
    }
    chip = Chip("cpu", "cpu", numbers=numbers, sources=dict.fromkeys(numbers, source))
    return Machine(
        name=f"cpu:{devices}",
        chip=chip,
        shape=(devices,),
        slices=1,
        topology=host_topology(devices, known.copy_bytes_per_s, known.handover_s),
        memory_bytes=memory / devices,
        hbm_bandwidth=traffic,
        matmul_efficiency=1.0,
        mxu_dim=0,
        overhead_seconds=known.call_s * max(1.0, devices / known.cores),
    )


def _text(shape: Shape, slices: int = 1) -> str:
    return "x".join(map(str, shape)) + (f"*{slices}" if slices > 1 else "")
