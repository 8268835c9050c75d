"""Reads the collectives out of optimised HLO text, as `compiled.as_text()` prints it on CPU, GPU and TPU.

Pure text: no jax. Bytes follow the planner's own words (`planner.plans.Collective`): of the whole array that
one group holds together, and for a permute the bytes each device sends. Wire bytes are those each device
sends on a ring: (g-1)/g of the whole for a gather or a scatter, twice that for an all-reduce, (g-1)/g of its
own part for an all-to-all.
"""

import dataclasses
import re
from collections.abc import Mapping

from planner.hlo_text import Body, Instruction, Module, callees, parse, parts, runs, size, source, sources
from planner.replica_groups import Groups, groups_of, mesh_axes

__all__ = ["Found", "collectives", "mesh_axes"]

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "ragged-all-to-all",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_FREE = {"bitcast", "copy", "get-tuple-element", "transpose", "reshape", "convert"}


@dataclasses.dataclass(frozen=True)
class Found:
    """One array moved by one collective of a compiled program; arrays that are moved together share its name.

    kind: as HLO spells it. groups: device numbers, the pairs (from, to) of a permute. times: runs per step,
    None where the trip count of a loop around it cannot be read. sliced: an all-reduce of which every device
    keeps only a slice, as a backend without reduce-scatter writes one. source: file:line, or ''.
    computation: the one it stands in. permutes: how many permutes it is written as (see `planner.windowed`),
    0 where it is written as itself.
    """

    name: str
    kind: str
    bytes: float
    wire_bytes: float
    group_size: int
    groups: Groups
    times: float | None
    sliced: bool
    op_name: str
    source: str
    computation: str
    permutes: int = 0

    @property
    def reduces(self) -> bool:
        """Whether it finishes a sum (or a max)."""
        return self.kind in ("all-reduce", "reduce-scatter")


def collectives(hlo_text: str) -> tuple[Found, ...]:
    """All collectives, array by array, in the order they are printed. An asynchronous pair counts once, and
    so do the parts of one that a TPU spreads over several fusions to hide it behind their work."""
    module = parse(hlo_text)
    times = runs(module, hlo_text)
    frames = sources(hlo_text)
    partitions = re.search(r"num_partitions=(\d+)", hlo_text)
    devices = int(partitions.group(1)) if partitions else 1
    found: list[Found] = []
    spread: set[tuple[str, ...]] = set()
    for computation, body in module.items():
        for one in body:
            kind = one.opcode.removesuffix("-start")
            chain = re.findall(r'\bchannel_id=\d+|chain_id="\d+"', one.text)
            if kind not in _KINDS or (len(chain) > 1 and (kind, *chain) in spread):
                continue
            spread.add((kind, *chain))
            fused = kind == "all-reduce" and "all-reduce-scatter" in computation  # how a TPU writes one
            shapes = _result_shapes(one, kind)
            for index, result in enumerate(shapes):
                part = index if len(shapes) > 1 else None
                sliced = kind == "all-reduce" and not fused and _is_sliced(one, body, module, part)
                place = _Place(computation, times.get(computation), devices, frames)
                found.append(_found(one, kind, fused, sliced, size(result), place))
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a collective stands: its computation, how often that runs, and what reads its metadata."""

    computation: str
    times: float | None
    devices: int
    frames: Mapping[str, str]


def _found(one: Instruction, kind: str, fused: bool, sliced: bool, result: float, place: _Place) -> Found:
    """result: bytes of one array of the result on one device; fused: an all-reduce that scatters."""
    groups = groups_of(one.text, place.devices)
    group = 2 if kind == "collective-permute" else max(len(group) for group in groups)
    whole = result * group if kind == "reduce-scatter" or kind.endswith("all-to-all") else result
    share = (group - 1) / group
    factors = {"all-to-all": share / group, "ragged-all-to-all": share / group, "collective-permute": 1.0}
    factor = 2 * share if kind == "all-reduce" and not fused else factors.get(kind, share)
    op_name = re.search(r'op_name="([^"]*)"', one.text)
    return Found(
        name=one.name,
        kind="reduce-scatter" if fused else kind,
        bytes=whole,
        wire_bytes=whole * factor,
        group_size=group,
        groups=groups,
        times=place.times,
        sliced=sliced,
        op_name=op_name.group(1) if op_name else "",
        source=source(one.text, place.frames),
        computation=place.computation,
    )


def _result_shapes(one: Instruction, kind: str) -> list[str]:
    """The arrays a collective returns on one device; a start instruction returns its operands before them."""
    shape = one.shape
    if one.opcode.endswith("-start") and kind != "all-reduce" and shape.startswith("("):
        shape = parts(shape)[1].strip()
    whole = kind.endswith("all-to-all")  # its tuple is one array in pieces
    return [shape] if whole else parts(shape)


def _is_sliced(one: Instruction, body: Body, module: Module, part: int | None = None) -> bool:
    """Whether every use of a result, or of one part of it, takes a slice, behind copies and in fusions."""
    users = [user for user in body if one.name in user.operands]
    if part is not None:
        users = [user for user in users if re.search(rf"\bindex={part}\b", user.text)]
    return bool(users) and all(_slices(user, one.name, body, module) for user in users)


def _slices(user: Instruction, name: str, body: Body, module: Module) -> bool:
    if user.opcode == "dynamic-slice":
        return user.operands[0] == name
    if user.opcode in _FREE or user.opcode.endswith("-done"):
        return _is_sliced(user, body, module)
    if user.opcode != "fusion":
        return False
    inner = module.get(next(callees(user), ""), ())
    numbers = [number for number, operand in enumerate(user.operands) if operand == name]
    parameters = [one for one in inner if any(f" parameter({n})" in one.text for n in numbers)]
    return bool(parameters) and all(_is_sliced(parameter, inner, module) for parameter in parameters)
