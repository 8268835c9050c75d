"""What the commands print, as rich renderables. Only ASCII glyphs, so that pipes and logs read as well."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.box import Box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.plans import Plan, SchemeRow
from planner.report.groups import LeafGroup, dtype_and_shape, group_collectives, group_leaves, mesh_text
from planner.report.honesty import honesty
from planner.report.units import duration, memory, traffic
from planner.report.words import headline, planning
from planner.sharding.spec import show

RULED = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
WIDTH = 100  # columns of a table that is piped
_ROWS = 24  # of a long list; what is left out is summed up in the last row


def console(file: Any = None) -> Console:
    """A console that is as wide as the terminal, or WIDTH columns without colour when piped."""
    probe = Console(file=file)
    return probe if probe.is_terminal else Console(file=file, width=WIDTH, no_color=True)


def columns(title: str, **justify: str) -> Table:
    """An empty table. justify: per column, 'left' or 'right'; underscores in a name print as spaces."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=RULED, show_edge=False, pad_edge=False
    )
    for name, side in justify.items():
        table.add_column(
            name.replace("_", " "), justify="right" if side == "right" else "left", overflow="fold"
        )
    return table


def plan_table(plan: Plan) -> RenderableType:
    """The whole plan: headline, memory, where the arguments live, what is communicated, how it compares."""
    parts: list[RenderableType] = [paragraph(headline(plan)), Text(), memory_table(plan)]
    parts += [Text(), leaves_table("where the arguments are kept", group_leaves(plan.arguments))]
    if plan.alive:
        parts += [Text(), leaves_table("the most that is alive at the peak", group_leaves(plan.alive))]
    if plan.collectives:
        parts += [Text(), collectives_table(plan)]
    if plan.schemes:
        parts += [Text(), schemes_table(plan.schemes)]
    return Group(*parts, Text(), paragraph(footnotes(plan)))


def comparison_table(plan: Plan) -> RenderableType:
    """The chosen plan beside the named schemes, all priced by one model."""
    return Group(
        paragraph(headline(plan)), Text(), schemes_table(plan.schemes), Text(), paragraph(footnotes(plan))
    )


def paragraph(lines: Sequence[str]) -> Text:
    """Lines of text as they are, with nothing in them read as markup."""
    return Text("\n".join(lines))


def footnotes(plan: Plan) -> list[str]:
    """What the planner did not do, and what it says about itself."""
    unknown = ", ".join(f"{name} x{count}" for name, count in sorted(plan.unknown.items()))
    lines = [*honesty(plan), *plan.notes]
    if unknown:
        lines.append(f"Primitives without a rule, kept whole and priced by their bytes: {unknown}.")
    return [*lines, planning(plan)]


def memory_table(plan: Plan) -> Table:
    """Bytes per device at the peak, by kind, the largest first."""
    table = columns("memory per device at the peak", kind="left", held="right", share="right")
    for kind, size in sorted(plan.memory.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(kind, memory(size), _share(size, plan.peak_bytes))
    table.add_row("peak", memory(plan.peak_bytes), "", style="bold")
    table.add_row("limit", memory(plan.limit_bytes), "")
    return table


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else ""


def leaves_table(title: str, groups: Sequence[LeafGroup]) -> Table:
    """One row per group of alike values; of a long list the largest, in the step's own order."""
    table = columns(title, path="left", type="left", kept_as="left", count="right", per_device="right")
    kept = set(sorted(range(len(groups)), key=lambda i: -groups[i].bytes)[:_ROWS])
    for i, group in enumerate(groups):
        if i in kept:
            leaf, count = group.leaf, f"x{group.count}" if group.count > 1 else ""
            kind = dtype_and_shape(leaf.dtype, leaf.shape)
            table.add_row(group.pattern, kind, show(leaf.spec), count, memory(group.bytes))
    rest = [group for i, group in enumerate(groups) if i not in kept]
    if rest:
        count = f"x{sum(group.count for group in rest)}"
        table.add_row("the rest", "", "", count, memory(sum(group.bytes for group in rest)))
    return table


def collectives_table(plan: Plan) -> Table:
    """One row per group of alike collectives, the costliest first."""
    groups = group_collectives(plan.collectives)
    table = columns(
        "collectives in a step",
        collective="left",
        axes="left",
        moves="left",
        runs="right",
        sent="right",
        time="right",
    )
    for row in groups[:_ROWS]:
        axes, sent = ", ".join(row.axes), traffic(row.wire_bytes)
        table.add_row(row.kind, axes, row.pattern, f"{row.runs:g}", sent, duration(row.seconds))
    rest = groups[_ROWS:]
    if rest:
        runs, sent = sum(row.runs for row in rest), traffic(sum(row.wire_bytes for row in rest))
        table.add_row("the rest", "", "", f"{runs:g}", sent, duration(sum(row.seconds for row in rest)))
    return table


def schemes_table(rows: Sequence[SchemeRow]) -> Table:
    """One row per scheme; one that cannot be used has the reason in its last column."""
    table = columns(
        "predicted, by scheme",
        scheme="left",
        mesh="left",
        step="right",
        compute="right",
        exposed="right",
        peak="right",
        sent="right",
        fits="left",
    )
    for row in rows:
        if row.applies:
            table.add_row(row.scheme, *[""] * 6, row.applies, style="dim")
            continue
        times = (row.step_seconds, row.compute_seconds, row.exposed_seconds)
        cells = [*map(duration, times), memory(row.peak_bytes), traffic(row.wire_bytes)]
        table.add_row(row.scheme, mesh_text(row.mesh), *cells, "yes" if row.fits else "no")
    return table


def measured_table(rows: Sequence["Measured"]) -> Table:
    """Predicted and measured step times of the plans that were run, side by side."""
    table = columns(
        "measured on this machine",
        plan="left",
        predicted="right",
        measured="right",
        measured_over_predicted="right",
        first_loss="right",
        last_loss="right",
    )
    for row in rows:
        ratio = f"{row.measured_seconds / row.predicted_seconds:.2f}" if row.predicted_seconds else ""
        times = (duration(row.predicted_seconds), duration(row.measured_seconds))
        table.add_row(row.name, *times, ratio, f"{row.losses[0]:.3f}", f"{row.losses[-1]:.3f}")
    return table


@dataclasses.dataclass(frozen=True)
class Measured:
    """One plan that was run: seconds of a step, predicted and measured, and the loss of every step."""

    name: str
    predicted_seconds: float
    measured_seconds: float
    losses: tuple[float, ...]
