"""Optimised HLO text as computations of instructions, and how often each computation runs in a step.

Pure text: no jax. What is printed differs a little by backend; what is read here is the same on all of them.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

_BITS = {"pred": 8, "c64": 64, "c128": 128}  # every other dtype says its bits: f32, bf16, s8, u4, f8e4m3fn
_COMPUTATION = re.compile(r"^(?:ENTRY\s+)?%?([\w.\-]+)\s*\(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(
    r"\b(?:calls|body|condition|to_apply|true_computation|false_computation|called_computations)=\{?%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_INTEGER = re.compile(r"\bconstant\((-?\d+)\)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation. shape: as printed. text: the whole line."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    text: str


Body = Sequence[Instruction]
Module = Mapping[str, tuple[Instruction, ...]]


def parse(text: str) -> dict[str, tuple[Instruction, ...]]:
    """Computation name -> its instructions."""
    module: dict[str, tuple[Instruction, ...]] = {}
    name, body = "", list[Instruction]()
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            name, body = header.group(1), []
        elif line.startswith("}") and name:
            module[name] = tuple(body)
        elif match := _INSTRUCTION.match(line):
            _, result, shape, opcode, rest = match.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", rest.split("), ")[0]))
            body.append(Instruction(result, shape, opcode, operands, line))
    return module


def callees(one: Instruction) -> Iterator[str]:
    """The computations that an instruction runs."""
    yield from _CALLED.findall(one.text)
    for several in _BRANCHES.findall(one.text):
        yield from re.findall(r"%?([\w.\-]+)", several)


def runs(module: Module, text: str) -> dict[str, float | None]:
    """Runs of every computation that is reached from the entry; None below a loop of unknown length."""
    callers: dict[str, list[tuple[str, float | None]]] = {}
    for computation, body in module.items():
        for one in body:
            times = 1.0 if one.opcode != "while" else _trips(one, module)
            for callee in callees(one):
                callers.setdefault(callee, []).append((computation, times))
    entry = re.search(r"^ENTRY\s+%?([\w.\-]+)", text, re.MULTILINE)

    @functools.cache
    def times_of(computation: str) -> float | None:
        if entry and computation == entry.group(1):
            return 1.0
        total = 0.0
        for caller, times in callers.get(computation, ()):
            above = times_of(caller)
            if above is None or times is None:
                return None
            total += above * times
        return total

    return {computation: times_of(computation) for computation in module}


def _trips(loop: Instruction, module: Module) -> float | None:
    """How often a loop runs: as the compiler knows it, or by its test `counter < constant`.

    A counter starts at 0 in the loops that jax writes for scan and fori_loop, and grows by the constant that
    the body adds to it (by more than 1 where the compiler unrolled the loop).
    """
    known = _TRIPS.search(loop.text)
    if known:
        return float(known.group(1))
    named = dict(re.findall(r"\b(condition|body)=%?([\w.\-]+)", loop.text))
    test = module.get(named.get("condition", ""), ())
    limits = [int(n) for one in test if one.opcode == "constant" for n in _INTEGER.findall(one.text)]
    compared = [one for one in test if one.opcode == "compare" and "direction=LT" in one.text]
    places = [n for one in test if one.opcode == "get-tuple-element" for n in _index(one)]
    if len(limits) != 1 or len(compared) != 1 or len(places) != 1:
        return None
    step = _growth(module.get(named.get("body", ""), ()), places[0])
    return math.ceil(limits[0] / step) if step else None


def _growth(body: Body, place: int) -> int:
    """What the body adds to the counter at `place` of its state; 0 where that cannot be read."""
    if not body:
        return 0
    made = {one.name: one for one in body}
    root = next((one for one in body if one.text.lstrip().startswith("ROOT ")), body[-1])
    counter = made.get(root.operands[place]) if place < len(root.operands) else None
    while counter is not None and counter.opcode in ("copy", "bitcast"):
        counter = made.get(counter.operands[0])
    if counter is None or counter.opcode != "add":
        return 0
    added = (made[name] for name in counter.operands if name in made and made[name].opcode == "constant")
    return sum(int(n) for one in added for n in _INTEGER.findall(one.text))


def _index(one: Instruction) -> list[int]:
    return [int(n) for n in re.findall(r"\bindex=(\d+)", one.text)]


def dims(shape: str) -> tuple[int, ...]:
    """The extents of an array as printed, such as f32[8,128]{1,0}.

    >>> dims("f32[8,128]{1,0:T(8,128)}")
    (8, 128)
    """
    found = re.match(r"\w+\[([\d,<=]*)\]", shape)
    return tuple(int(extent) for extent in re.findall(r"\d+", found.group(1))) if found else ()


def size(shape: str) -> float:
    """Bytes of an array, or of all arrays of a tuple.

    >>> size("(f32[4]{0}, bf16[2,3]{1,0})")
    28.0
    """
    total = 0.0
    for dtype, extents in re.findall(r"\b([a-z]\w*)\[([\d,<=]*)\]", shape):
        digits = re.search(r"\d+", dtype)
        bits = _BITS.get(dtype) or (int(digits.group()) if digits else 0)
        total += math.prod(int(extent) for extent in re.findall(r"\d+", extents)) * bits / 8
    return total


def parts(shape: str) -> list[str]:
    """The parts of a tuple shape, split at the commas outside all brackets; an array is its only part."""
    if not shape.startswith("("):
        return [shape]
    found, depth, current = list[str](), 0, ""
    for letter in shape[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append(current)
            current = ""
        else:
            current += letter
    return [*found, current]


def sources(text: str) -> dict[str, str]:
    """Stack frame number -> file:line, from the tables newer versions print before the program: of the
    innermost frame that belongs to no installed package, or of the frame itself if all do."""
    files = dict(re.findall(r'^(\d+) "(.*)"$', _table(text, "FileNames"), re.MULTILINE))
    locations = {
        number: f"{files.get(file, '?')}:{line}"
        for number, file, line in re.findall(
            r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", _table(text, "FileLocations"), re.MULTILINE
        )
    }
    found: dict[str, str] = {}
    frames = r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?"
    for number, location, parent in re.findall(frames, _table(text, "StackFrames"), re.MULTILINE):
        here = locations.get(location, "")
        # Frames count from 1, but the parent is printed one too high, so that 1 stands for no parent.
        above = found.get(str(int(parent) - 1), "") if parent else ""
        found[number] = above if "site-packages" in here and above else here
    return found


def _table(text: str, title: str) -> str:
    match = re.search(rf"^{title}\n((?:\d+ .*\n)*)", text, re.MULTILINE)
    return match.group(1) if match else ""


def source(text: str, frames: Mapping[str, str]) -> str:
    """file:line of one instruction, '' if it has none. frames: what `sources` found."""
    frame = re.search(r"stack_frame_id=(\d+)", text)
    written = re.search(r'source_file="([^"]*)" source_line=(\d+)', text)
    if written:
        return f"{written.group(1)}:{written.group(2)}"
    return frames.get(frame.group(1), "") if frame else ""
