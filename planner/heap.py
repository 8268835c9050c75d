"""What a TPU program holds, from the compiler's own buffer assignment.

The memory analysis that jax passes on has the temporaries of a TPU program as 2 heap - live, so that the
heap's fragmentation counts twice (libtpu 0.0.42: a heap of 2,026 MB with 1,598 MB of live arrays at its
fullest is given as 2,453 MB). The assignment, which the compiler writes on request, has the heap itself:
what a device must have free. It is there long before the code, which takes most of the time of a
compilation.
"""

import dataclasses
import re
from pathlib import Path

FLAGS = {"xla_dump_hlo_as_text": True, "xla_dump_hlo_pass_re": "NONE"}  # beside xla_dump_to=FOLDER
_ASSIGNMENT = "*.after_optimizations-buffer-assignment.txt"
_SCHEDULED = "*.after_optimizations_after_buffer_assignment.txt"  # written after the assignment
_WHOLE = re.compile(r"\nENTRY [^\n]*\n(?:  [^\n]*\n)*\}\s*$")
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*)((?:\n .*)*)", re.MULTILINE)
_TABLE = re.compile(r"^ value: .*offset=(\d+)\): \(", re.MULTILINE)
_SLOT = 16384  # bytes that each of the compiler's tables takes of the heap


@dataclasses.dataclass(frozen=True)
class Held:
    """Bytes on each device, in its main memory. aliases: of outputs that are written into arguments."""

    arguments: float = 0.0
    outputs: float = 0.0
    aliases: float = 0.0
    temporaries: float = 0.0


def held(assignment: str) -> Held:
    """Reads the text of a buffer assignment. Left out are the tables of where the parts of a tuple lie, one
    for every asynchronous operation, of which small programs hold nothing else: they are the program's, as
    its code is.

    >>> held("allocation 0: size 512, parameter 0, shape |f32[8]| at ShapeIndex {}, maybe-live-out:")
    Held(arguments=512.0, outputs=512.0, aliases=512.0, temporaries=0.0)
    """
    sums = {field.name: 0.0 for field in dataclasses.fields(Held)}
    for size, what, values in _ALLOCATION.findall(assignment):
        if what.startswith("color"):
            continue  # another memory, on the chip itself
        enters, leaves = "parameter" in what, "maybe-live-out" in what
        kinds = {
            "arguments": enters,
            "outputs": leaves,
            "aliases": enters and leaves,
            "temporaries": what.startswith("preallocated-temp"),
        }
        for kind, counts in kinds.items():
            sums[kind] += float(size) if counts else 0.0
        if kinds["temporaries"]:
            sums["temporaries"] -= min(float(size), _SLOT * len(set(_TABLE.findall(values))))
    return Held(**sums)


def written(folder: Path) -> tuple[str, str] | None:
    """(buffer assignment, scheduled program) of a compilation that was asked to write them into `folder`;
    None as long as they are not there whole."""
    assignment, scheduled = sorted(folder.glob(_ASSIGNMENT)), sorted(folder.glob(_SCHEDULED))
    if not assignment or not scheduled:
        return None
    text = scheduled[-1].read_text()
    return (assignment[-1].read_text(), text) if _WHOLE.search(text) else None
