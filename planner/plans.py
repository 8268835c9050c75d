"""Plan: what the planner decided for one step on one machine, with what it predicts. Plain data, no jax.

The plan of a value is its spec where it is made (`sites` of kind 'out', 'in', 'ret') and, where an op uses
it in another spec, the specs it passes through on the way to that use (`sites` of kind 'use').
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import PlanFileError
from planner.graph.graph import Site
from planner.sharding.spec import Spec, show
from planner.storage import decode, encode, write_json

FORMAT = "meshwright-plan"
VERSION = 2


@dataclasses.dataclass(frozen=True)
class Collective:
    """One planned collective. bytes: of the whole array one group holds (sent bytes for a permute), per run;
    wire_bytes: sent by each device, per run; seconds: per run; times: runs in a step; value: what moves, by
    name; source: the user's line."""

    kind: str
    axes: tuple[str, ...]
    bytes: float
    wire_bytes: float
    seconds: float
    times: float
    value: str
    source: str


@dataclasses.dataclass(frozen=True)
class SchemeRow:
    """What one scheme costs, by the same model as the plan. applies: '' or why the scheme cannot be used."""

    scheme: str
    mesh: Mapping[str, int]
    step_seconds: float
    compute_seconds: float
    exposed_seconds: float
    peak_bytes: float
    wire_bytes: float
    fits: bool
    applies: str = ""


@dataclasses.dataclass(frozen=True)
class LeafPlan:
    """Where one argument or result lives: its path, shape, dtype, spec and bytes per device."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: Spec
    bytes: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sharding plan. Seconds, bytes and FLOPs are predictions per step and per device.

    mesh: axis sizes in order. step_seconds: compute and what of the communication nothing hides, by the
    timeline. summed_seconds: if nothing ran beside anything; lower_bound_seconds: proven, of such sums, which
    the search goes by. flops: of matmuls and convolutions. arguments, results: in flattened order.
    sites: see the module. schemes: the chosen plan beside the named schemes. seconds: planning time of trace,
    space, cost, solve, total. memory: predicted bytes by kind (parameters, optimizer state, gradients,
    activations, ...) at the peak; alive: what takes most of it then, arguments aside. fingerprint: of the
    step's graph, so that a plan is not used for another step. in_specs, out_specs: pytrees of jax
    PartitionSpecs shaped like the (not static) arguments and the result; None in a plan read from a file,
    which knows no pytrees: `argument_specs` and `result_specs` are always there. timeline: a
    planner.simulate.timeline.Timeline of the step; None in a plan read from a file.
    """

    machine: str
    mesh: Mapping[str, int]
    scheme: str
    words: str
    step_seconds: float
    compute_seconds: float
    exposed_seconds: float
    peak_bytes: float
    limit_bytes: float
    wire_bytes: float
    flops: float
    summed_seconds: float
    lower_bound_seconds: float
    stopped: str
    memory: Mapping[str, float]
    alive: tuple[LeafPlan, ...]
    arguments: tuple[LeafPlan, ...]
    results: tuple[LeafPlan, ...]
    sites: Mapping[Site, tuple[Spec, ...]]
    collectives: tuple[Collective, ...]
    schemes: tuple[SchemeRow, ...]
    seconds: Mapping[str, float]
    unknown: Mapping[str, int]
    notes: tuple[str, ...]
    fingerprint: str
    versions: Mapping[str, str]

    in_specs: Any = dataclasses.field(default=None, compare=False, repr=False)
    out_specs: Any = dataclasses.field(default=None, compare=False, repr=False)
    timeline: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def argument_specs(self) -> dict[str, Spec]:
        """The spec of each array argument, by path."""
        return {leaf.path: leaf.spec for leaf in self.arguments}

    @property
    def result_specs(self) -> dict[str, Spec]:
        """The spec of each array result, by path."""
        return {leaf.path: leaf.spec for leaf in self.results}

    def table(self) -> Any:
        """The plan as a rich renderable."""
        from planner.report.tables import plan_table  # the report reads plans, so it is loaded on use

        return plan_table(self)

    def explain(self, path: str) -> str:
        """Where the values that `path` names are kept, and what moves them; see `planner.report.words`."""
        from planner.report.words import explain

        return explain(self, path)

    def diff(self, other: "Plan") -> str:
        """What changes from this plan to the other, one line each; '' when nothing does."""
        from planner.report.words import diff

        return diff(self, other)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, whole or not at all; `load` reads it back equal."""
        write_json(path, {"format": FORMAT, "version": VERSION, "plan": encode(Plan, self)})


def as_json(plan: Plan) -> dict[str, Any]:
    """What `--json` writes: the plan without its sites, with the specs by path and the schemes that apply by
    name."""
    data = encode(Plan, plan)
    del data["sites"]
    data["schemes"] = {row.pop("scheme"): row for row in data["schemes"] if not row["applies"]}
    specs = {
        "in_specs": {path: show(spec) for path, spec in plan.argument_specs.items()},
        "out_specs": {path: show(spec) for path, spec in plan.result_specs.items()},
    }
    return data | specs


def load(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan that `Plan.save` wrote. Raises PlanFileError when the file holds anything else."""
    name = repr(os.fspath(path))
    again = "Make it anew with `python -m planner plan --out=FILE`."
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise PlanFileError(
            f"{name} cannot be read ({reason}). Check the path, or make the plan first."
        ) from error
    except ValueError as error:
        raise PlanFileError(f"{name} is not JSON, or was cut short ({error}). {again}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanFileError(f"{name} is JSON but no plan of Meshwright's. {again}")
    if data.get("version") != VERSION:
        raise PlanFileError(
            f"{name} has format version {data.get('version')!r} and this Meshwright reads {VERSION}. "
            "Read it with the Meshwright that wrote it, or make it anew."
        )
    try:
        return decode(Plan, data.get("plan"), "plan")
    except ValueError as error:
        raise PlanFileError(f"{name} is damaged: {str(error).rstrip('.')}. {again}") from error
