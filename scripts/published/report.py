"""Tables and a picture of outcomes: how far predictions are from what was measured, and in which order."""

import itertools
import pathlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from scipy.stats import spearmanr

from scripts.published.rows import Row

Outcome = Mapping[str, Any]
Pair = tuple[Row, Outcome]
_LEAST = 4  # layouts in a group that is ranked
_TOP = 3
_SAME = (
    "source", "hardware", "model", "layers", "d_model", "seq_len", "global_batch_sequences", "n_chips",
    "remat",
)  # fmt: skip


def with_error(pairs: Sequence[Pair]) -> list[Pair]:
    """Those that have an error."""
    return [(row, one) for row, one in pairs if one.get("error") is not None]


def error_table(title: str, pairs: Sequence[Pair], group_of: Callable[[Row], str]) -> Table:
    """Median and 90th percentile of the absolute errors, and the mean of the signed ones, by group."""
    table = Table("group", "rows", "median absolute error", "90th percentile", "mean error", title=title)
    groups: dict[str, list[float]] = defaultdict(list)
    for row, one in with_error(pairs):
        groups[group_of(row)].append(one["error"])
    for name in sorted(groups):
        table.add_row(name, *_figures(groups[name]))
    table.add_row("all", *_figures([e for errors in groups.values() for e in errors]))
    return table


def _figures(errors: Sequence[float]) -> tuple[str, ...]:
    if not errors:
        return ("0", "", "", "")
    size = np.abs(errors)
    return (
        str(len(errors)),
        f"{np.median(size):.1%}",
        f"{np.quantile(size, 0.9):.1%}",
        f"{np.mean(errors):+.1%}",
    )


def _same_but_layout(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Rows with an error, in groups that differ in the layout only."""
    groups: dict[tuple, list[Pair]] = defaultdict(list)
    for row, one in with_error(pairs):
        groups[tuple(getattr(row, field) for field in _SAME)].append((row, one))
    return list(groups.values())


def order_table(pairs: Sequence[Pair]) -> Table:
    """Rows that differ in the layout only: rank correlation, and the predicted rank of the measured best."""
    table = Table("model", "hardware", "chips", "layouts", "Spearman", "best is predicted", title="Order")
    for several in _same_but_layout(pairs):
        predicted = [one["predicted_s"] for _, one in several]
        measured = [one["measured_s"] for _, one in several]
        if len(several) < _LEAST or len(set(predicted)) < _LEAST:
            continue
        best = measured.index(min(measured))
        rank = sorted(predicted).index(predicted[best]) + 1
        row = several[0][0]
        table.add_row(
            row.model,
            row.hardware,
            str(row.n_chips),
            str(len(several)),
            f"{spearmanr(predicted, measured)[0]:.2f}",
            f"number {rank}" + ("" if rank <= _TOP else " (not among the top 3)"),
        )
    return table


def pair_table(pairs: Sequence[Pair]) -> Table:
    """Pairs of rows that differ in the layout only, by hardware, and how many were predicted in the order
    that was measured. Layouts predicted alike are the same layout, and no pair."""
    table = Table("hardware", "pairs", "in the measured order", title="Order of pairs")
    right: dict[str, list[bool]] = defaultdict(list)
    for several in _same_but_layout(pairs):
        for (row, one), (_, other) in itertools.combinations(several, 2):
            apart, measured = (one[key] - other[key] for key in ("predicted_s", "measured_s"))
            if apart and measured and row.n_chips != 1:  # one device has one layout
                right[chip_of(row)].append((apart > 0) == (measured > 0))
    for name in sorted(right):
        table.add_row(name, str(len(right[name])), str(sum(right[name])))
    return table


def memory_table(pairs: Sequence[Pair]) -> Table:
    """Steps that ran and that did not, against what was predicted, for the hardware on which some did not."""
    table = Table("hardware", "measured", "predicted to fit", "predicted not to fit", title="Memory")
    short = {row.hardware for row, one in pairs if one.get("ran") is False}
    for hardware in sorted(short):
        for ran in (True, False):
            fits = [one["fits"] for row, one in pairs if row.hardware == hardware and one.get("ran") is ran]
            words = "ran" if ran else "out of memory"
            table.add_row(hardware, words, str(sum(fits)), str(len(fits) - sum(fits)))
    return table


def skip_table(pairs: Sequence[Pair]) -> Table:
    """The rows left out, by reason."""
    table = Table("reason", "rows", title="Skipped")
    reasons: dict[str, int] = defaultdict(int)
    for _, one in pairs:
        if "skipped" in one:
            reasons[one["skipped"]] += 1
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(reason, str(count))
    table.add_row("all", f"{sum(reasons.values())} of {len(pairs)}")
    return table


def chip_of(row: Row) -> str:
    """The first words of the hardware, without the size of the slice or node."""
    return row.hardware.split("(")[0].strip()


def scatter(pairs: Sequence[Pair], path: pathlib.Path) -> None:
    """A picture of predicted against measured seconds, one colour a chip. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 7), dpi=120)
    axes = figure.add_subplot()
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for row, one in with_error(pairs):
        groups[chip_of(row)].append(one)
    for name in sorted(groups):
        measured = [one["measured_s"] for one in groups[name]]
        predicted = [one["predicted_s"] for one in groups[name]]
        axes.scatter(measured, predicted, s=14, alpha=0.7, label=name)
    times = [one[key] for _, one in with_error(pairs) for key in ("measured_s", "predicted_s")]
    ends = [min(times, default=0.1) / 1.3, max(times, default=1.0) * 1.3]
    axes.plot(ends, ends, color="black", linewidth=1)
    for factor in (0.75, 1.25):
        axes.plot(ends, [end * factor for end in ends], color="gray", linewidth=0.6, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel("measured seconds of a step")
    axes.set_ylabel("predicted seconds of a step (dashed: 25% off)")
    axes.legend(fontsize=6)
    figure.savefig(path, bbox_inches="tight")


def markdown(table: Table) -> str:
    """A rich table as Markdown."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    heads = [str(column.header) for column in table.columns]
    lines = [f"### {table.title}", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in zip(*columns, strict=True)]
    return "\n".join(lines) + "\n"
