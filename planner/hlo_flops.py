"""FLOPs of the matmuls and convolutions of an optimised program, on one device, loops included.

XLA's own `cost_analysis` counts the body of a loop once, whatever its length; this counts it as often as it
runs. A TPU writes a matmul as a convolution without spatial dims, and a batched one as a convolution over
windows that touch one element only: multiplications with padding and with the holes of a dilated operand
are therefore not counted, as in XLA.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

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
        products *= _touched(
            left[into.index(label)],
            right[kernel.index(label)],
            result[out.index(label)],
            _window(one.text, spatial),
        )
    return products


def _window(text: str, dim: int) -> dict[str, tuple[int, int]]:
    """The numbers of one spatial dim: stride, padding (low, high), dilations; the defaults where none are
    printed."""
    window = re.search(r"window=\{([^}]*)\}", text)
    found = {"stride": (1, 0), "pad": (0, 0), "lhs_dilate": (1, 0), "rhs_dilate": (1, 0)}
    for name, values in re.findall(r"(\w+)=([\d_x\-]+)", window.group(1) if window else ""):
        numbers = [int(n) for n in values.split("x")[dim].split("_")]
        found[name] = (numbers[0], numbers[-1])
    return found


def _touched(extent: int, window: int, outputs: int, numbers: Mapping[str, tuple[int, int]]) -> int:
    """Pairs of an output position and a window position that meet an element of the input."""
    stride, low = numbers["stride"][0], numbers["pad"][0]
    holes = numbers["lhs_dilate"][0]
    places = (
        np.arange(outputs)[:, None] * stride - low + np.arange(window)[None, :] * numbers["rhs_dilate"][0]
    )
    inside = (places >= 0) & (places < (extent - 1) * holes + 1) & (places % holes == 0)
    return int(inside.sum())
