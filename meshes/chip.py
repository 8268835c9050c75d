"""Chip: what is published about one accelerator, read from `meshes/chips/<name>.toml`.

A chip file holds one number a line, its unit in the key and its public source in the comment. What is not
published is absent, and asking for it is an error that names it: an unknown rate is never zero.
"""

import dataclasses
import difflib
import functools
import importlib.resources
import tomllib
from collections.abc import Iterable, Mapping

from planner.errors import InputError

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator. numbers: key with unit -> value per chip, SI. sources: the same keys -> where from.
    slices: the shapes a TPU slice may have, in chips. device_kinds: what JAX calls the device. asynchronous:
    the kinds of collectives that its compiler runs beside the compute, where that depends on the chip."""

    name: str
    kind: str
    aliases: tuple[str, ...] = ()
    device_kinds: tuple[str, ...] = ()
    slices: tuple[Shape, ...] = ()
    asynchronous: tuple[str, ...] = ()
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    ring_by_gpus: Mapping[int, float] = dataclasses.field(default_factory=dict, hash=False)

    def number(self, key: str) -> float:
        """The value of `key`. Raises InputError where it is not published."""
        if key not in self.numbers:
            raise InputError(
                f"{self.name} has no public value for {key!r}, which this machine needs; choose a smaller "
                f"machine or another chip, or add the number to meshes/chips/{self.name}.toml."
            )
        return self.numbers[key]

    @property
    def devices_per_chip(self) -> int:
        """How many devices JAX shows for one chip: 2 on TPU 7x, else 1."""
        return int(self.numbers.get("devices_per_chip", 1))


@functools.cache
def chip_names() -> tuple[str, ...]:
    """The names of all chip files, sorted."""
    files = (importlib.resources.files("meshes") / "chips").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@functools.cache
def read_chip(name: str) -> Chip:
    """The chip of a file name, such as 'tpu_v5e'."""
    text = (importlib.resources.files("meshes") / "chips" / f"{name}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    ring = table.pop("nvlink_ring_bytes_per_s_by_gpus", {})
    return Chip(
        name=name,
        kind=table["kind"],
        aliases=tuple(table["aliases"]),
        device_kinds=tuple(table["device_kinds"]),
        slices=tuple(tuple(map(int, shape.split("x"))) for shape in table.get("slices", ())),
        asynchronous=tuple(table.get("asynchronous", ())),
        numbers={key: value for key, value in table.items() if isinstance(value, int | float)},
        sources=_sources(text.splitlines()),
        ring_by_gpus={int(gpus): rate for gpus, rate in ring.items()},
    )


def _sources(lines: Iterable[str]) -> dict[str, str]:
    """key -> comment of every `key = value  # comment` line."""
    found = {}
    for line in lines:
        key, is_pair, rest = line.partition(" = ")
        _, has_comment, source = rest.partition("  # ")
        if is_pair and has_comment:
            found[key.strip()] = source.strip()
    return found


def _plain(text: str) -> str:
    return text.lower().replace("-", "_").replace(" ", "_")


@functools.cache
def _names() -> dict[str, str]:
    """Everything a chip may be called, in plain form -> its name."""
    found: dict[str, str] = {}
    for name in chip_names():
        spoken = (name, name.partition("_")[2], *read_chip(name).aliases)
        found.update({_plain(word): name for word in spoken})
    return found


def find_chip(text: str) -> Chip:
    """The chip called `text`: its name, an alias, or the beginning of exactly one name ('h100').

    Raises InputError with the nearest names.
    """
    names, word = _names(), _plain(text)
    if word in names:
        return read_chip(names[word])
    begin = sorted({name for spoken, name in names.items() if word and spoken.startswith(word)})
    if len(begin) == 1:
        return read_chip(begin[0])
    near = begin or [names[spoken] for spoken in difflib.get_close_matches(word, names, n=3, cutoff=0.5)]
    if not near:
        raise InputError(
            f"Unknown chip {text!r}; write cpu, or one of {', '.join(chip_names())}, as in 'tpu_v5e:4x4'."
        )
    what, meant = "Ambiguous" if begin else "Unknown", " or ".join(dict.fromkeys(near))
    raise InputError(f"{what} chip {text!r}; did you mean {meant}?")
