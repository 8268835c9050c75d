"""What a row's prediction came to, as an object of JSON."""

import re
from typing import Any

from planner.errors import PlannerError
from scripts.published.conventions import measured_seconds
from scripts.published.layout import CannotPredict, layout_of, sweep
from scripts.published.model import shape_of
from scripts.published.predict import USABLE_FRACTION, predict
from scripts.published.rows import Row


def outcome_of(row: Row) -> dict[str, Any]:
    """predicted_s, measured_s and error (predicted over measured, less 1), each None where there is none;
    peak_bytes and fits, predicted for one device; or skipped, with the reason."""
    about: dict[str, Any] = {"line": row.line, "model": row.model, "hardware": row.hardware}
    try:
        layout = layout_of(row)
        shape = shape_of(row, layout.runtime)
        measured = measured_seconds(row, shape)
        if measured is None and not ran_out_of_memory(row):
            raise CannotPredict("neither a step time nor a rate of FLOPs was measured")
        layouts = sweep(layout) if "best microbatch count" in row.notes.lower() else [layout]
        found = min(
            (predict(shape, one, default_remat=not row.remat) for one in layouts), key=lambda one: one.seconds
        )
    except PlannerError as error:
        return about | {"skipped": str(error)}
    return about | {
        "predicted_s": found.seconds,
        "measured_s": measured,
        "error": None if measured is None else found.seconds / measured - 1.0,
        "peak_bytes": found.peak,
        "fits": found.peak <= USABLE_FRACTION * found.limit,
        "ran": not ran_out_of_memory(row),
        "layout": layout_text(row),
    }


def ran_out_of_memory(row: Row) -> bool:
    """Whether the row says that the step did not fit the memory."""
    return re.search(r"out of memory|did not (?:run|fit)", row.notes.lower()) is not None


def layout_text(row: Row) -> str:
    """The degrees of parallelism above one, as one word each."""
    degrees = ((axis, getattr(row, axis)) for axis in ("dp", "fsdp", "tp", "pp", "cp", "ep"))
    return " ".join(f"{axis}={size}" for axis, size in degrees if (size or 1) > 1) or "one device"
