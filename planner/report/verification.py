"""A verification as tables: collectives planned beside compiled, bytes sent, memory, FLOPs, and the flags."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.matching import AS_PLANNED, SCALARS, Moved, Row
from planner.report.groups import common, starred
from planner.report.tables import columns, paragraph
from planner.report.units import duration, memory, traffic
from planner.verdict import Compared, Verification

_ROWS = 40  # of the collectives; what is left out is summed up in the last row
_ORDER = {AS_PLANNED: 1, SCALARS: 2}  # after what is not as planned


def verification_table(found: Verification) -> RenderableType:
    """The whole verification: the verdict, the collectives, the numbers, the flags."""
    parts: list[RenderableType] = [
        paragraph([headline(found)]),
        Text(),
        _collectives(found.rows),
        Text(),
        _numbers(found),
        Text(),
        _memory(found),
    ]
    if found.flags:
        parts += [Text(), paragraph([f"{flag.kind}: {flag}" for flag in found.flags])]
    return Group(*parts, Text(), paragraph([*found.notes, f"Compiled in {duration(found.seconds)}."]))


def headline(found: Verification) -> str:
    """One line.

    The plan holds, or how many things are not as planned.
    """
    where = f"compiled for {found.compiler}"
    if found.holds:
        return f"The plan holds, {where}."
    count = len(found.flags)
    return f"The plan does not hold, {where}: {count} thing{'s are' if count > 1 else ' is'} not as planned."


def as_json(found: Verification) -> dict[str, Any]:
    """What `--json` writes."""

    def compared(one: Compared) -> dict[str, float]:
        return {"planned": one.planned, "compiled": one.compiled}

    return {
        "holds": found.holds,
        "compiler": found.compiler,
        "flags": [dataclasses.asdict(flag) for flag in found.flags],
        "wire_bytes": compared(found.wire),
        "wire_bytes_by_axes": {axes: compared(one) for axes, one in found.wire_by_axes.items()},
        "flops": compared(found.flops),
        "memory": {
            "arguments": compared(found.memory.arguments),
            "outputs": compared(found.memory.outputs),
            "aliases": compared(found.memory.aliases),
            "temporaries": compared(found.memory.temporaries),
            "peak": compared(found.memory.peak),
            "planned_kinds": dict(found.memory.kinds),
        },
        "rows": [dataclasses.asdict(row) for row in found.rows],
        "notes": list(found.notes),
        "seconds": found.seconds,
    }


def _collectives(rows: Sequence[Row]) -> Table:
    """Alike rows as one, what is not as planned first, then by the bytes sent."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        one = row.either
        groups.setdefault((row.status, one.kind, one.axes, starred(one.value), one.bytes), []).append(row)
    order = sorted(groups.values(), key=lambda same: (_ORDER.get(same[0].status, 0), -_most(same)))
    table = columns(
        "collectives, planned and compiled",
        what="left",
        collective="left",
        axes="left",
        moves="left",
        runs="right",
        planned="right",
        compiled="right",
        at="left",
    )
    for same in order[:_ROWS]:
        one = same[0].either
        value = one.value if same[0].planned is None else common([row.either.value for row in same])
        runs = " / ".join(f"{sum(m.runs for m in side):g}" for side in _sides(same))
        sent = [traffic(sum(m.sent for m in side)) if side else "-" for side in _sides(same)]
        table.add_row(same[0].status, one.kind, ", ".join(one.axes), value, runs, *sent, one.source)
    rest = [row for same in order[_ROWS:] for row in same]
    if rest:
        sent = [traffic(sum(m.sent for m in side)) for side in _sides(rest)]
        runs = " / ".join(f"{sum(m.runs for m in side):g}" for side in _sides(rest))
        table.add_row("the rest", "", "", "", runs, *sent, "")
    return table


def _sides(rows: Sequence[Row]) -> tuple[list[Moved], list[Moved]]:
    return [row.planned for row in rows if row.planned], [row.compiled for row in rows if row.compiled]


def _most(rows: Sequence[Row]) -> float:
    return max(sum(m.sent for m in side) for side in _sides(rows))


def _numbers(found: Verification) -> Table:
    table = columns("per device and step", what="left", planned="right", compiled="right", difference="right")
    lines: Iterable[tuple[str, Compared, Any]] = [
        ("sent", found.wire, traffic),
        *((f"sent over {axes}", one, traffic) for axes, one in found.wire_by_axes.items()),
        ("FLOPs of matmuls", found.flops, lambda count: f"{count:.4g}"),
    ]
    for what, one, unit in lines:
        table.add_row(what, unit(one.planned), unit(one.compiled), _difference(one))
    return table


def _memory(found: Verification) -> Table:
    """What XLA tells apart, planned and compiled; then what the plan holds at its peak, by kind."""
    held = found.memory
    table = columns("memory per device", what="left", planned="right", compiled="right", difference="right")
    for what, one in (
        ("arguments", held.arguments),
        ("outputs", held.outputs),
        ("outputs written into arguments", held.aliases),
        ("temporaries", held.temporaries),
        ("peak", held.peak),
    ):
        table.add_row(what, memory(one.planned), memory(one.compiled), _difference(one))
    for kind, size in sorted(held.kinds.items(), key=lambda item: -item[1]):
        table.add_row(f"  {kind} at the plan's peak", memory(size), "", "")
    return table


def _difference(one: Compared) -> str:
    return f"{100 * one.excess:+.1f}%" if one.planned > 0 else ""
