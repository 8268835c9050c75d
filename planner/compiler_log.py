"""What the compiler says while it works: warnings that XLA writes to the process' standard error, read on the
way. No jax.

XLA logs from C++, past `sys.stderr`, so the file descriptor itself is turned to a file meanwhile. Everything
but the warnings that are read here is written on to where it would have gone. The compiler of TPUs is silent
unless TPU_STDERR_LOG_LEVEL asks for its warnings before it is loaded, and then writes many: of those nothing
is written on unless it fails.
"""

import contextlib
import dataclasses
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping

from planner.hlo_text import source

_REMADE = re.compile(r"Involuntary full rematerialization\..*?HLO operation:? %\S+ = (\w+\[[\d,]*\])")

# A row of the report on memory: cumulative size; size; offset; number of values; their shapes.
_BUFFER = re.compile(r"^ +[\d.]+\w+\( *\d+%\); +([\d.]+[KMGT]iB); +\d+; +\d+; (\w+\[[\d,]*\])", re.MULTILINE)
_WARNING = re.compile(r"^W\d{4} |Involuntary full rematerialization")


@dataclasses.dataclass(frozen=True)
class Remade:
    """An array that the compiler makes whole on every device, because it finds no other way from one sharding
    to the next. shape: as HLO prints it, on one device. line: the whole warning."""

    shape: str
    line: str

    def source(self, frames: Mapping[str, str]) -> str:
        """file:line of the op, '' if unknown. frames: what `hlo_text.sources` read from the program."""
        return source(self.line, frames)


@dataclasses.dataclass
class Heard:
    """Filled while `listening`. largest: of the arrays that do not fit, where the memory does not suffice,
    each with its size. deaf: how to have the warnings written, '' if they are."""

    remade: tuple[Remade, ...] = ()
    largest: tuple[str, ...] = ()
    deaf: str = ""


@contextlib.contextmanager
def listening(platform: str) -> Iterator[Heard]:
    """Reads what the process writes to standard error inside the block; known when it ends. platform: that is
    compiled for."""
    heard = Heard(deaf=_deaf(platform))
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        failed = True
        try:
            yield heard
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode(errors="replace")
            lines = text.splitlines(keepends=True)
            heard.remade = tuple(one for line in lines for one in _remade(line))
            heard.largest = tuple(f"{shape} ({size})" for size, shape in dict.fromkeys(_BUFFER.findall(text)))
            if not heard.largest and (failed or platform != "tpu"):
                known = _WARNING if platform == "tpu" else _REMADE
                os.write(2, "".join(line for line in lines if not known.search(line)).encode())


def _deaf(platform: str) -> str:
    if platform == "tpu":
        return "" if os.environ.get("TPU_STDERR_LOG_LEVEL") in ("0", "1") else "set TPU_STDERR_LOG_LEVEL=1"
    return "unset TF_CPP_MIN_LOG_LEVEL" if int(os.environ.get("TF_CPP_MIN_LOG_LEVEL") or 0) > 1 else ""


def _remade(line: str) -> Iterator[Remade]:
    found = _REMADE.search(line)
    if found:
        yield Remade(found.group(1), line.strip())
