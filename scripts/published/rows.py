"""Rows of published step times: one CSV line each, checked and typed.

A row names a model by its sizes, a machine, how many devices each kind of parallelism took, and a step time
or a rate of FLOPs that was measured. An empty field is None.
"""

import csv
import dataclasses
import pathlib
from collections.abc import Mapping

from planner.errors import InputError

TEXTS = ("source", "model", "hardware", "remat", "dtype", "notes")
WHOLES = (
    "layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab", "seq_len",
    "global_batch_sequences", "n_chips", "dp", "fsdp", "tp", "pp", "cp", "ep",
)  # fmt: skip
NUMBERS = ("params", "step_time_s", "tflops_per_chip", "mfu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the file, `line` of it. step_time_s: seconds; tflops_per_chip: TFLOP/s; params: count."""

    line: int
    source: str
    model: str
    hardware: str
    remat: str
    dtype: str
    notes: str
    layers: int | None
    d_model: int | None
    n_heads: int | None
    n_kv_heads: int | None
    d_head: int | None
    d_ff: int | None
    vocab: int | None
    seq_len: int | None
    global_batch_sequences: int | None
    n_chips: int | None
    dp: int | None
    fsdp: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    params: float | None
    step_time_s: float | None
    tflops_per_chip: float | None
    mfu: float | None


def read_rows(path: pathlib.Path) -> list[Row]:
    """The rows of a CSV file. Raises InputError for a file that cannot be read, a column that is missing, and
    a number that is none."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            lines = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r} cannot be read ({reason}). Name a CSV file with --csv.") from error
    missing = [name for name in (*TEXTS, *WHOLES, *NUMBERS) if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(
            f"{str(path)!r} has no column {missing[0]!r}; give it the columns "
            f"{', '.join((*TEXTS, *WHOLES, *NUMBERS))}, empty where nothing is known."
        )
    return [_row(line, number) for number, line in enumerate(lines, start=2)]


def _row(line: Mapping[str, str | None], number: int) -> Row:
    fields: dict[str, str | int | float | None] = {name: (line[name] or "").strip() for name in TEXTS}
    for name in (*WHOLES, *NUMBERS):
        text = (line[name] or "").strip()
        fields[name] = _number(text, name, number) if text else None
        if text and name in WHOLES:
            fields[name] = int(fields[name] or 0)
    return Row(line=number, **fields)  # type: ignore[arg-type]


def _number(text: str, name: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf") or (name in WHOLES and value != int(value)):
        kind = "a whole number of at least 1" if name in WHOLES else "a positive number"
        raise InputError(f"Line {line}: {name} is {text!r}; give {kind}, or leave it empty.")
    return value
