"""Program: what a compiler made of a planned step, as plain data; no jax."""

import dataclasses
import functools
import re
from collections.abc import Mapping

from planner.hlo import Found, collectives
from planner.hlo_flops import matmul_flops
from planner.windowed import without_windows


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled step, per device.

    compiler: for which devices, in words. text: the optimised HLO. argument_bytes, output_bytes, alias_bytes
    (of outputs that are written into arguments), temporary_bytes: as XLA's memory analysis gives them, for a
    TPU as its buffer assignment does (see `planner.heap`). donated: flat indices of the arguments the step
    may overwrite. partners: flat argument index -> flat index of the result that replaces it. seconds: that
    compiling took. moved: flat argument index -> how the result that replaces it differs from it. remade:
    (array, file:line) of what the compiler makes whole on every device to change its sharding; deaf: how to
    have it say so, '' if it does.
    """

    compiler: str
    text: str
    argument_bytes: float
    output_bytes: float
    alias_bytes: float
    temporary_bytes: float
    donated: tuple[int, ...]
    partners: Mapping[int, int]
    seconds: float
    moved: Mapping[int, str] = dataclasses.field(default_factory=dict)
    remade: tuple[tuple[str, str], ...] = ()
    deaf: str = ""

    @property
    def peak_bytes(self) -> float:
        """Bytes that are held when most is: arguments and outputs that replace them count once."""
        return self.argument_bytes + self.temporary_bytes + self.output_bytes - self.alias_bytes

    @functools.cached_property
    def collectives(self) -> tuple[Found, ...]:
        """The collectives, array by array, without those of a single device; a loop of permutes as the one
        that it stands for."""
        found = tuple(one for one in collectives(self.text) if one.group_size > 1)
        return without_windows(found, self.text)

    @functools.cached_property
    def flops(self) -> float:
        """FLOPs of matmuls and convolutions, loops included."""
        return matmul_flops(self.text)

    @functools.cached_property
    def lost_donations(self) -> tuple[int, ...]:
        """Flat indices of the donated arguments that are read, and whose memory no result gets."""
        header = self.text.split("\n", 1)[0]
        given = {int(number) for number in re.findall(r"\}: \((\d+), \{[^}]*\}, \w+-alias\)", header)}
        entry = re.search(r"^ENTRY .*?^\}", self.text, re.MULTILINE | re.DOTALL)
        read = re.findall(r' parameter\((\d+)\).*op_name="leaves\[(\d+)\]"', entry.group() if entry else "")
        lost = {int(leaf) for number, leaf in read if int(number) not in given}
        return tuple(index for index in self.donated if index in lost)
