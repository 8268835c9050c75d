"""A plan in sentences: its headline, one value explained, two plans compared."""

import difflib
import re
from collections.abc import Sequence

from planner.errors import InputError
from planner.plans import Collective, LeafPlan, Plan
from planner.report.groups import LeafGroup, dtype_and_shape, group_collectives, group_leaves, mesh_text
from planner.report.units import duration, memory, traffic
from planner.sharding.spec import Spec, axes_of, pieces, show


def headline(plan: Plan) -> list[str]:
    """The plan in a few lines: where, what, how long, how sure, how much memory."""
    room = "no limit" if plan.limit_bytes == float("inf") else f"of {memory(plan.limit_bytes)}"
    return [
        f"{plan.machine}, mesh {mesh_text(plan.mesh)}",
        plan.words,
        f"step {duration(plan.step_seconds)} = compute {duration(plan.compute_seconds)}"
        f" + exposed communication {duration(plan.exposed_seconds)},"
        f" {traffic(plan.wire_bytes)} sent per device",
        f"{_summed(plan)}lower bound {duration(plan.lower_bound_seconds)}, so {gap(plan)} ({plan.stopped})",
        f"peak memory per device {memory(plan.peak_bytes)}, {room}",
    ]


def _summed(plan: Plan) -> str:
    """What the step would take if nothing overlapped, where something does: what the bound is a bound of."""
    hidden = plan.summed_seconds - plan.step_seconds
    if hidden <= 1e-6 * plan.summed_seconds:
        return ""
    return f"with nothing overlapping {duration(plan.summed_seconds)}, "


def gap(plan: Plan) -> str:
    """How far the plan may be from the best of its space, if nothing overlaps."""
    if plan.lower_bound_seconds <= 0:
        return "nothing is proven about how good the plan is"
    excess = plan.summed_seconds / plan.lower_bound_seconds - 1
    if excess <= 1e-9:
        return "no plan of this space is faster"
    return f"no plan of this space is more than {100 * excess:.2g}% faster"


def planning(plan: Plan) -> str:
    """What planning took, stage by stage."""
    total = plan.seconds.get("total")
    stages = ", ".join(f"{name} {duration(t)}" for name, t in plan.seconds.items() if name != "total")
    return f"planned in {duration(total)} ({stages})" if total is not None else f"planned: {stages}"


def explain(plan: Plan, path: str) -> str:
    """Where the values that `path` names are kept and what moves them; `*` stands for any text.

    Raises InputError when no argument or result has such a path.
    """
    matcher = re.compile(".*".join(map(re.escape, path.split("*"))))
    arguments = [leaf for leaf in plan.arguments if matcher.fullmatch(leaf.path)]
    results = [leaf for leaf in plan.results if matcher.fullmatch(leaf.path)]
    moves = [item for item in plan.collectives if matcher.fullmatch(item.value)]
    if not arguments and not results and not moves:
        raise InputError(f"The plan has no value {path!r}. {_nearest(plan, path)}")
    lines = []
    for group in group_leaves(arguments):
        lines += _kept(plan, group, "argument")
        lines += _moved([item for item in moves if item.value in group.paths])
    for group in group_leaves(results):
        lines += _kept(plan, group, "result")
    known = {leaf.path for leaf in arguments}
    inside = [item for item in moves if item.value not in known]
    return "\n".join(lines + (["inside the step:", *_moved(inside)] if inside else []))


def _nearest(plan: Plan, path: str) -> str:
    paths = list(dict.fromkeys(leaf.path for leaf in plan.arguments + plan.results))
    close = difflib.get_close_matches(path, paths, n=3, cutoff=0.3) or paths[:3]
    return f"Near it are {', '.join(close)}; `*` stands for any text."


def _kept(plan: Plan, group: LeafGroup, role: str) -> list[str]:
    leaf = group.leaf
    many = f"  x{group.count}" if group.count > 1 else ""
    split = pieces(leaf.spec, plan.mesh)
    how = f"split {split} ways over {over(plan, leaf.spec)}" if split > 1 else "a whole copy on every device"
    return [
        f"{group.pattern}  {dtype_and_shape(leaf.dtype, leaf.shape)}{many}",
        f"  {role}, kept as {show(leaf.spec)}: {how}, {memory(leaf.bytes)} per device",
    ]


def over(plan: Plan, spec: Spec) -> str:
    """The axes of a spec with their sizes."""
    return " and ".join(f"{axis} ({plan.mesh[axis]})" for axis in axes_of(spec))


def _moved(moves: Sequence[Collective]) -> list[str]:
    if not moves:
        return ["  no collective moves it: it is used where it is kept"]
    return [
        f"  {row.kind} over {', '.join(row.axes)}: {row.runs:g} in a step,"
        f" {traffic(row.wire_bytes)} sent per device, {duration(row.seconds)}"
        + (f" ({row.source})" if row.source else "")
        for row in group_collectives(moves)
    ]


def diff(old: Plan, new: Plan) -> str:
    """What changes from `old` to `new`, one line each; '' when nothing does."""
    said = [
        ("machine", old.machine, new.machine),
        ("mesh", mesh_text(old.mesh), mesh_text(new.mesh)),
        ("words", old.words, new.words),
        ("step", duration(old.step_seconds), duration(new.step_seconds)),
        ("peak memory", memory(old.peak_bytes), memory(new.peak_bytes)),
        ("wire", traffic(old.wire_bytes), traffic(new.wire_bytes)),
    ]
    lines = [f"{name}: {before} -> {after}" for name, before, after in said if before != after]
    lines += _diff_leaves("argument", old.arguments, new.arguments)
    return "\n".join(lines + _diff_leaves("result", old.results, new.results))


def _diff_leaves(role: str, old: Sequence[LeafPlan], new: Sequence[LeafPlan]) -> list[str]:
    before, after = ({leaf.path: leaf for leaf in leaves} for leaves in (old, new))
    lines = []
    for group in group_leaves(leaf for leaf in old if leaf.path not in after):
        lines.append(f"{role} {group.pattern}: gone, x{group.count}")
    for group in group_leaves(leaf for leaf in new if leaf.path not in before):
        lines.append(f"{role} {group.pattern}: new, {show(group.leaf.spec)}, x{group.count}")
    moved: dict[Spec, list[LeafPlan]] = {}
    for path, leaf in before.items():
        if path in after and after[path].spec != leaf.spec:
            moved.setdefault(after[path].spec, []).append(leaf)
    for spec, leaves in moved.items():
        for group in group_leaves(leaves):
            lines.append(f"{role} {group.pattern}: {show(group.leaf.spec)} -> {show(spec)}, x{group.count}")
    return lines
