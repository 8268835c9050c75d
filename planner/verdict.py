"""Verification: whether a compiled program does what its plan says, and where not.

What is held against each other, per device and step: every collective (see `planner.matching`), the bytes
sent in total and along each set of axes, the FLOPs of matmuls, the peak memory, and what becomes of the
arguments. A difference above its tolerance is a flag: one sentence, and a remedy.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.matching import MISSING, SCALAR, UNPLANNED, Moved, Row, compiled_moves, match, planned_moves
from planner.plans import Plan
from planner.program import Program
from planner.report.units import memory, traffic
from planner.whole import Key, left_whole

WIRE_TOLERANCE = 0.05  # of the bytes sent, in total
AXES_TOLERANCE = 0.10  # of the bytes sent along one set of axes
SURPRISE = 0.01  # of the bytes sent: above it a collective without its counterpart is a flag
FLOPS_TOLERANCE = 0.03
PEAK_TOLERANCE = 0.10  # by which the planned peak may be too low
PEAK_SCRATCH = 4 * 2**20  # bytes: libtpu 0.0.50 sets 3.1 to 3.3 MiB aside for steps of less than 1 MiB
WHOLE = 0.05  # of the peak memory: above it an array that is whole against the plan is a flag

_REPORT = "Report it with the plan; another scheme (schemes=) may do until it is repaired."


@dataclasses.dataclass(frozen=True)
class Flag:
    """Something that is not as planned. kind: a word to sort by; what: one sentence; remedy: another."""

    kind: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


@dataclasses.dataclass(frozen=True)
class Compared:
    """One number, planned and compiled."""

    planned: float
    compiled: float

    @property
    def excess(self) -> float:
        """How much more is compiled than planned, as a part of what is planned."""
        if self.planned == self.compiled:
            return 0.0
        return self.compiled / self.planned - 1 if self.planned else float("inf")


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes per device, planned and compiled. aliases: of the outputs that are written into arguments;
    temporaries: all else; kinds: what the plan holds at its peak."""

    arguments: Compared
    outputs: Compared
    aliases: Compared
    temporaries: Compared
    peak: Compared
    kinds: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Verification:
    """A plan held against a compiled program. rows: collectives, one to one; wire: bytes each device sends,
    scalars left out; wire_by_axes: the same along each set of axes; notes: good to know, and no fault."""

    compiler: str
    rows: tuple[Row, ...]
    wire: Compared
    wire_by_axes: Mapping[str, Compared]
    memory: Memory
    flops: Compared
    flags: tuple[Flag, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether nothing is flagged."""
        return not self.flags

    def table(self) -> Any:
        """The verification as a rich renderable."""
        from planner.report.verification import verification_table  # it reads verdicts: loaded on use

        return verification_table(self)


def verdict(plan: Plan, program: Program, never_whole: Mapping[Key, str] | None = None) -> Verification:
    """Holds a plan against the program that was compiled from it. never_whole: what the plan keeps split
    everywhere (see `planner.whole`); where it is not given, nothing is looked for."""
    planned = planned_moves(plan.collectives, plan.mesh)
    compiled = compiled_moves(program.collectives, plan.mesh)
    rows = match(planned, compiled)
    mine, theirs = _sent(planned), _sent(compiled)
    wire = Compared(sum(mine.values()), sum(theirs.values()))
    by_axes = {axes: Compared(mine[axes], theirs[axes]) for axes in sorted({**mine, **theirs})}
    held = _memory(plan, program)
    flops = Compared(plan.flops, program.flops)
    flags = (
        *_arguments(plan, program),
        *_replicated(program, never_whole or {}),
        *_traffic(rows, wire, by_axes),
        *_work(flops),
        *_peak(plan, held.peak),
    )
    return Verification(
        compiler=program.compiler,
        rows=rows,
        wire=wire,
        wire_by_axes=by_axes,
        memory=held,
        flops=flops,
        flags=flags,
        notes=tuple(_notes(plan, program)),
        seconds=program.seconds,
    )


def _memory(plan: Plan, program: Program) -> Memory:
    arguments, outputs = (sum(leaf.bytes for leaf in leaves) for leaves in (plan.arguments, plan.results))
    aliases = sum(plan.arguments[i].bytes for i in program.donated if i in program.partners)
    return Memory(
        arguments=Compared(arguments, program.argument_bytes),
        outputs=Compared(outputs, program.output_bytes),
        aliases=Compared(aliases, program.alias_bytes),
        temporaries=Compared(
            max(0.0, plan.peak_bytes - arguments - outputs + aliases), program.temporary_bytes
        ),
        peak=Compared(plan.peak_bytes, program.peak_bytes),
        kinds=plan.memory,
    )


def _sent(moves: Sequence[Moved]) -> dict[str, float]:
    """Bytes along each set of axes, those of scalars left out."""
    found: dict[str, float] = defaultdict(float)
    for one in moves:
        if one.bytes > SCALAR:
            found[", ".join(one.axes)] += one.sent
    return found


def _arguments(plan: Plan, program: Program) -> Iterator[Flag]:
    for index in program.lost_donations:
        leaf = plan.arguments[index]
        yield Flag(
            "lost donation",
            f"{leaf.path} ({memory(leaf.bytes)}) is donated, but its memory is used for no result.",
            "Return a value of its shape, dtype and spec in its place, or leave it out of donate_argnums.",
        )
    for index, how in program.moved.items():
        enters, leaves = plan.arguments[index], plan.results[program.partners[index]]
        yield Flag(
            "second compile",
            f"{leaves.path}, which becomes {enters.path} of the next step, has {how}, so that the next step "
            "moves it first, or is compiled again.",
            "Plan again with this version; if it stays so, report it with the plan.",
        )


def _replicated(program: Program, never_whole: Mapping[Key, str]) -> Iterator[Flag]:
    for (shape, source), count in Counter(program.remade).items():
        at, times = f" at {source}" if source else "", f", {count} times" if count > 1 else ""
        yield Flag(
            "rematerialisation",
            f"The compiler finds no way from one sharding of {shape} to the next{at}, and makes it whole on "
            f"every device{times}.",
            f"Pin what it is made of to one of them (pins=). {_REPORT}",
        )
    for one in left_whole(never_whole, program.text, WHOLE * program.peak_bytes):
        yield Flag(
            "whole",
            f"{one.name}, {memory(one.bytes)} at {one.source}, is whole on every device, and was planned to "
            "be split.",
            f"Pin what it is made of (pins=). {_REPORT}",
        )


def _traffic(rows: Sequence[Row], wire: Compared, by_axes: Mapping[str, Compared]) -> Iterator[Flag]:
    most = max(wire.planned, wire.compiled)
    for kind, wanted in ((UNPLANNED, "compiled and not planned"), (MISSING, "planned and not compiled")):
        alike: dict[tuple[str, str, str], float] = defaultdict(float)
        for row in rows:
            one = row.either
            if row.status == kind and one.sent > SURPRISE * most:
                alike[one.kind, ", ".join(one.axes), one.source] += one.sent
        for (name, axes, source), sent in alike.items():
            at = f", at {source}" if source else ""
            part = f"{100 * sent / most:.1f}% of all that is sent"
            what = f"{name} over {axes}{at} is {wanted}: {traffic(sent)} a step, {part}."
            yield Flag(kind, what, _REPORT)
    if abs(wire.excess) > WIRE_TOLERANCE:
        yield Flag("wire bytes", _differ("Each device sends", wire, traffic), _REPORT)
    for axes, one in by_axes.items():
        if abs(one.excess) > AXES_TOLERANCE and abs(one.compiled - one.planned) > SURPRISE * most:
            yield Flag("wire bytes", _differ(f"Over {axes} each device sends", one, traffic), _REPORT)


def _work(flops: Compared) -> Iterator[Flag]:
    if abs(flops.excess) > FLOPS_TOLERANCE:
        remedy = (
            "Some matmul is done whole on several devices: pin its operands (pins=), or report the plan."
            if flops.excess > 0
            else _REPORT
        )
        yield Flag("flops", _differ("Each device does", flops, lambda n: f"{n:.4g} FLOPs"), remedy)


def _peak(plan: Plan, peak: Compared) -> Iterator[Flag]:
    """A CPU's compiler keeps the operand of a sum beside its result and reuses memory little: there only the
    limit counts."""
    too_low = max((1 + PEAK_TOLERANCE) * peak.planned, peak.planned + PEAK_SCRATCH)
    allowed = plan.limit_bytes if _is_cpu(plan) else too_low
    if peak.compiled > allowed:
        yield Flag(
            "memory",
            _differ("At its peak each device holds", peak, memory),
            "Leave that much room: plan with a smaller memory_fraction.",
        )


def _is_cpu(plan: Plan) -> bool:
    return plan.machine.startswith("cpu:")


def _differ(what: str, one: Compared, unit: Any) -> str:
    return f"{what} {unit(one.compiled)} where {unit(one.planned)} were planned ({100 * one.excess:+.1f}%)."


def _notes(plan: Plan, program: Program) -> Iterator[str]:
    whole = [leaf for leaf in plan.arguments if leaf.shape and not any(leaf.spec)]
    if whole and any(size > 1 for size in plan.mesh.values()):
        largest = max(whole, key=lambda leaf: leaf.bytes)
        yield (
            f"{len(whole)} arguments, {memory(sum(leaf.bytes for leaf in whole))} on each device, are kept "
            f"whole, as planned; the largest is {largest.path}, {memory(largest.bytes)}."
        )
    if _is_cpu(plan):
        yield (
            "The peak is held against the memory limit only: a CPU's compiler reuses memory less than others."
        )
    if program.deaf:
        yield (
            "The compiler's warnings are off, so what it makes whole only to change a sharding is not seen: "
            f"{program.deaf} before jax is imported."
        )
    if any(one.times is None for one in program.collectives):
        yield "A loop whose length cannot be read from the program counts as one run."
