"""What to say when nothing fits: how many bytes are short, and the cheapest things that would make it fit."""

import math

from meshes.machine import Machine
from planner.errors import InfeasibleError
from planner.graph.coarsen import Coarse
from planner.graph.graph import Graph
from planner.graph.labels import batch_extent
from planner.planning import Decided, memory_at_peak
from planner.report.units import memory
from planner.search import Found

_OF_EXAMPLES = ("activations", "batch")


def does_not_fit(
    graph: Graph, coarse: Coarse, found: Found, machine: Machine, memory_fraction: float
) -> InfeasibleError:
    """The error for a search whose leanest choice exceeds the limit."""
    best = found.best
    peak, limit = best.choice.peak, best.tables.problem.usage_limit
    held = memory_at_peak(Decided(graph, coarse, best.tables, best.choice.choice), found.sorts)
    parts = ", ".join(f"{kind} {memory(count)}" for kind, count in sorted(held.items(), key=lambda i: -i[1]))
    remedies = [*_fraction(peak, machine, memory_fraction), *_batch(graph, held, peak - limit)]
    devices = 2 ** math.ceil(math.log2(machine.devices * peak / limit))
    remedies.append(f"about {devices} devices of this kind instead of {machine.devices}")
    return InfeasibleError(
        f"No plan fits: the leanest one found needs {memory(peak)} per device on {machine.name}, "
        f"{memory(peak - limit)} ({peak - limit:.0f} bytes) more than the limit of {memory(limit)} ({parts}). "
        f"What would make it fit: {'; or '.join(remedies)}."
    )


def _fraction(peak: float, machine: Machine, fraction: float) -> list[str]:
    wanted = math.ceil(100 * peak / machine.memory_bytes) / 100
    return [f"memory_fraction={wanted:.2f} instead of {fraction:g}"] if wanted <= 1 else []


def _batch(graph: Graph, held: dict[str, float], short: float) -> list[str]:
    """A smaller batch, if what grows with the batch is more than what is short; else nothing, as it would not help."""
    batch = batch_extent(graph)
    per_batch = sum(held.get(kind, 0.0) for kind in _OF_EXAMPLES)
    if batch is None or per_batch <= short:
        return []
    smaller = batch
    while smaller > 1 and per_batch * (1 - smaller / batch) < short:
        smaller //= 2
    advice = f"a batch of {smaller} instead of {batch}"
    return [f"{advice}, or rematerialisation (jax.checkpoint) of the activations"] if smaller < batch else []
