"""Plan: what the planner decided for one step on one machine, with what it predicts. Plain data, no jax.

The plan of a value is its spec where it is made (`sites` of kind 'out', 'in', 'ret') and, where an op uses it in
another spec, the specs it passes through on the way to that use (`sites` of kind 'use').
"""

import dataclasses
from collections.abc import Mapping

from planner.graph.graph import Site
from planner.sharding.spec import Spec


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
    """A sharding plan. Seconds and bytes are predictions per step and per device.

    mesh: axis sizes in order. arguments, results: in flattened order. sites: see the module. schemes: the
    chosen plan beside the named schemes. seconds: planning time of trace, space, cost, solve, total.
    memory: predicted bytes by kind (parameters, optimizer state, gradients, activations, ...) at the peak.
    fingerprint: of the step's graph, so that a plan is not used for another step.
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
    lower_bound_seconds: float
    stopped: str
    memory: Mapping[str, float]
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
