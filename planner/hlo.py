"""Reads the collectives out of optimised HLO text, as `compiled.as_text()` prints it on CPU, GPU and TPU.

Pure text: no jax. Bytes follow the planner's own words (`planner.plans.Collective`): of the whole array that
one group holds together, and for a permute the bytes each device sends. Wire bytes are those each device
sends on a ring: (g-1)/g of the whole for a gather or a scatter, twice that for an all-reduce, (g-1)/g of its
own part for an all-to-all.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

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
_BITS = {"pred": 8, "c64": 64, "c128": 128}  # every other dtype says its bits: f32, bf16, s8, u4, f8e4m3fn
_COMPUTATION = re.compile(r"^(?:ENTRY\s+)?%?([\w.\-]+)\s*\(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|to_apply|true_computation|false_computation|called_computations)=\{?%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_FREE = {"bitcast", "copy", "get-tuple-element", "transpose", "reshape", "convert"}


@dataclasses.dataclass(frozen=True)
class Found:
    """One array moved by one collective of a compiled program; arrays that are moved together share its name.

    kind: as HLO spells it. groups: device numbers, the pairs (from, to) of a permute. times: runs per step,
    None where the trip count of a loop around it cannot be read. sliced: an all-reduce of which every device
    keeps only a slice, as a backend without reduce-scatter writes one. source: file:line, or ''.
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

    @property
    def reduces(self) -> bool:
        """Whether it finishes a sum (or a max)."""
        return self.kind in ("all-reduce", "reduce-scatter")


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    text: str


Module = Mapping[str, tuple[_Instruction, ...]]


def collectives(hlo_text: str) -> tuple[Found, ...]:
    """All collectives, array by array, in the order they are printed. An asynchronous pair counts once."""
    module = _parse(hlo_text)
    times = _times(module, hlo_text)
    sources = _sources(hlo_text)
    partitions = re.search(r"num_partitions=(\d+)", hlo_text)
    devices = int(partitions.group(1)) if partitions else 1
    found: list[Found] = []
    for computation, body in module.items():
        for one in body:
            kind = one.opcode.removesuffix("-start")
            if kind not in _KINDS:
                continue
            fused = kind == "all-reduce" and "all-reduce-scatter" in computation  # how a TPU writes one
            shapes = _result_shapes(one, kind)
            for index, result in enumerate(shapes):
                part = index if len(shapes) > 1 else None
                sliced = kind == "all-reduce" and not fused and _is_sliced(one, body, module, part)
                place = times.get(computation)
                found.append(_found(one, kind, fused, sliced, place, _bytes(result), devices, sources))
    return tuple(found)


def _found(
    one: _Instruction,
    kind: str,
    fused: bool,
    sliced: bool,
    times: float | None,
    result: float,
    devices: int,
    sources: Mapping[str, str],
) -> Found:
    """result: bytes of one array of the result on one device; fused: an all-reduce that scatters."""
    groups = groups_of(one.text, devices)
    size = 2 if kind == "collective-permute" else max(len(group) for group in groups)
    whole = result * size if kind == "reduce-scatter" or kind.endswith("all-to-all") else result
    share = (size - 1) / size
    factors = {"all-to-all": share / size, "ragged-all-to-all": share / size, "collective-permute": 1.0}
    factor = 2 * share if kind == "all-reduce" and not fused else factors.get(kind, share)
    op_name = re.search(r'op_name="([^"]*)"', one.text)
    return Found(
        name=one.name,
        kind="reduce-scatter" if fused else kind,
        bytes=whole,
        wire_bytes=whole * factor,
        group_size=size,
        groups=groups,
        times=times,
        sliced=sliced,
        op_name=op_name.group(1) if op_name else "",
        source=_source(one.text, sources),
    )


def _parse(text: str) -> dict[str, tuple[_Instruction, ...]]:
    """Computation name -> its instructions."""
    module: dict[str, tuple[_Instruction, ...]] = {}
    name, body = "", list[_Instruction]()
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            name, body = header.group(1), []
        elif line.startswith("}") and name:
            module[name] = tuple(body)
        elif match := _INSTRUCTION.match(line):
            _, result, shape, opcode, rest = match.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", rest.split("), ")[0]))
            body.append(_Instruction(result, shape, opcode, operands, line))
    return module


def _callees(one: _Instruction) -> Iterator[str]:
    yield from _CALLED.findall(one.text)
    for several in _BRANCHES.findall(one.text):
        yield from re.findall(r"%?([\w.\-]+)", several)


def _times(module: Module, text: str) -> dict[str, float | None]:
    """Runs of every computation that is reached from the entry; None below a loop of unknown length."""
    callers: dict[str, list[tuple[str, float | None]]] = {}
    for computation, body in module.items():
        for one in body:
            trips = _TRIPS.search(one.text)
            runs = 1.0 if one.opcode != "while" else float(trips.group(1)) if trips else None
            for callee in _callees(one):
                callers.setdefault(callee, []).append((computation, runs))
    entry = re.search(r"^ENTRY\s+%?([\w.\-]+)", text, re.MULTILINE)

    @functools.cache
    def times(computation: str) -> float | None:
        if entry and computation == entry.group(1):
            return 1.0
        total = 0.0
        for caller, runs in callers.get(computation, ()):
            above = times(caller)
            if above is None or runs is None:
                return None
            total += above * runs
        return total

    return {computation: times(computation) for computation in module}


def _result_shapes(one: _Instruction, kind: str) -> list[str]:
    """The arrays a collective returns on one device; a start instruction returns its operands before them."""
    shape = one.shape
    if one.opcode.endswith("-start") and kind != "all-reduce" and shape.startswith("("):
        shape = _split(shape[1:-1])[1].strip()
    whole = kind.endswith("all-to-all")  # its tuple is one array in pieces
    return _split(shape[1:-1]) if shape.startswith("(") and not whole else [shape]


def _split(text: str) -> list[str]:
    """The parts of a tuple shape, split at the commas outside all brackets."""
    parts, depth, current = list[str](), 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [*parts, current]


def _bytes(shape: str) -> float:
    """Bytes of an array, or of all arrays of a tuple."""
    total = 0.0
    for dtype, dims in re.findall(r"\b([a-z]\w*)\[([\d,<=]*)\]", shape):
        digits = re.search(r"\d+", dtype)
        bits = _BITS.get(dtype) or (int(digits.group()) if digits else 0)
        total += math.prod(int(extent) for extent in re.findall(r"\d+", dims)) * bits / 8
    return total


def _is_sliced(
    one: _Instruction, body: Sequence[_Instruction], module: Module, part: int | None = None
) -> bool:
    """Whether every use of a result, or of one part of it, takes a slice, behind copies and in fusions."""
    users = [user for user in body if one.name in user.operands]
    if part is not None:
        users = [user for user in users if re.search(rf"\bindex={part}\b", user.text)]
    return bool(users) and all(_slices(user, one.name, body, module) for user in users)


def _slices(user: _Instruction, name: str, body: Sequence[_Instruction], module: Module) -> bool:
    if user.opcode == "dynamic-slice":
        return user.operands[0] == name
    if user.opcode in _FREE or user.opcode.endswith("-done"):
        return _is_sliced(user, body, module)
    if user.opcode != "fusion":
        return False
    inner = module.get(next(_callees(user), ""), ())
    numbers = [number for number, operand in enumerate(user.operands) if operand == name]
    parameters = [one for one in inner if any(f" parameter({n})" in one.text for n in numbers)]
    return bool(parameters) and all(_is_sliced(parameter, inner, module) for parameter in parameters)


def _sources(text: str) -> dict[str, str]:
    """Stack frame number -> file:line, from the tables newer versions print before the program."""
    files = dict(re.findall(r'^(\d+) "(.*)"$', _table(text, "FileNames"), re.MULTILINE))
    locations = {
        number: f"{files.get(file, '?')}:{line}"
        for number, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", _table(text, "FileLocations"), re.MULTILINE
        )
    }
    frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", _table(text, "StackFrames"), re.MULTILINE)
    return {number: locations.get(location, "") for number, location in frames}


def _table(text: str, title: str) -> str:
    match = re.search(rf"^{title}\n((?:\d+ .*\n)*)", text, re.MULTILINE)
    return match.group(1) if match else ""


def _source(text: str, sources: Mapping[str, str]) -> str:
    frame = re.search(r"stack_frame_id=(\d+)", text)
    written = re.search(r'source_file="([^"]*)" source_line=(\d+)', text)
    if written:
        return f"{written.group(1)}:{written.group(2)}"
    return sources.get(frame.group(1), "") if frame else ""
