"""FLOPs of the matmuls and convolutions of an optimised program, on one device, loops included.

XLA's own `cost_analysis` counts the body of a loop once, whatever its length; this counts it as often as it
runs. A TPU writes a matmul as a convolution without spatial dims, and a batched one as a convolution over
windows that touch one element only: multiplications with padding and with the holes of a dilated operand
are therefore not counted, as in XLA.
"""

import math
import re
from collections.abc import Mapping

from planner.graph.windows import meetings
from planner.hlo_text import Instruction, dims, parse, runs


def matmul_flops(hlo_text: str) -> float:
    """A multiply and an add for each product; a loop of unknown length counts once."""
    module = parse(hlo_text)
    times = runs(module, hlo_text)
    total = 0.0
    for computation, body in module.items():
        shapes = {one.name: one.shape for one in body}
        for one in body:
            if one.opcode in ("dot", "convolution"):
                count = _dot(one, shapes) if one.opcode == "dot" else _convolution(one, shapes)
                place = times[computation]
                total += count * (1.0 if place is None else place)
    return total


def _dot(one: Instruction, shapes: Mapping[str, str]) -> float:
    left = dims(shapes.get(one.operands[0], ""))
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.text)
    inner = [left[int(d)] for d in re.findall(r"\d+", contracted.group(1))] if contracted else []
    return 2.0 * math.prod(dims(one.shape)) * math.prod(inner)


def _convolution(one: Instruction, shapes: Mapping[str, str]) -> float:
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.text)
    if labels is None:
        return 0.0
    left, right = (dims(shapes.get(name, "")) for name in one.operands[:2])
    result = dims(one.shape)
    into, kernel, out = labels.groups()
    products = 2.0 * result[out.index("b")] * result[out.index("f")] * right[kernel.index("i")]
    for label in filter(str.isdigit, out):
        spatial = sorted(filter(str.isdigit, out)).index(label)
        products *= meetings(
            left[into.index(label)],
            right[kernel.index(label)],
            result[out.index(label)],
            **_window(one.text, spatial),
        )
    return products


_NUMBERS = {"stride": "stride", "pad": "low", "lhs_dilate": "holes", "rhs_dilate": "dilation"}


def _window(text: str, dim: int) -> dict[str, int]:
    """The numbers of one spatial dim, in the words of `meetings`; those that are printed."""
    window = re.search(r"window=\{([^}]*)\}", text)
    found = re.findall(r"(\w+)=([\d_x\-]+)", window.group(1) if window else "")
    return {
        _NUMBERS[name]: int(values.split("x")[dim].split("_")[0])
        for name, values in found
        if name in _NUMBERS
    }
