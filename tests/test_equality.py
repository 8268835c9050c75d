"""What the planner promises, on eight devices: the sharded step computes what the step computes, gives its state's
memory back, compiles once, and starts from parameters that were never whole anywhere."""

import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from steps import MESHES, NAMES, Unsharded, compilations, unsharded

import planner
from planner.sharding.named import SCHEMES
from planner.training import abstract_state

# The MLP is quick under every scheme; the others are run quickly as they would be used, by the plan that is chosen.
CASES = [
    pytest.param((name, scheme), id=f"{name}-{scheme}", marks=() if quick else pytest.mark.slow)
    for name in NAMES
    for scheme in ("chosen", *SCHEMES)
    for quick in [name == "mlp" or (scheme == "chosen" and name in ("gpt_scan", "resnet"))]
]


@dataclasses.dataclass(frozen=True)
class Ran:
    """A sharded step after three calls. program: its HLO; given: the state as it was put, before the first call;
    later: what was compiled after the first call."""

    reference: Unsharded
    step: planner.ShardedStep
    program: Any
    given: Any
    after: Any
    metrics: Any
    later: tuple[str, ...]


@pytest.fixture(scope="module")
def references() -> dict[str, Unsharded]:
    """What each step does on one device, run when it is first needed."""
    return {}


@pytest.fixture(scope="module", params=CASES)
def ran(request: pytest.FixtureRequest, references: dict[str, Unsharded]) -> Ran:
    name, scheme = request.param
    reference = references[name] if name in references else references.setdefault(name, unsharded(name))
    inside = {} if scheme == "chosen" else {"mesh": MESHES[scheme], "schemes": [scheme]}
    args = (abstract_state(reference.init), reference.batches[0])
    step = planner.plan_and_shard(reference.step, *args, machine="cpu:8", **inside)
    # The free search may well end in a scheme; a search inside a scheme cannot end anywhere else.
    assert scheme in ("chosen", step.plan.scheme)
    program = step.lower().compile()
    first, *rest = reference.batches
    given, batch = step.put(reference.before, first)
    state, metrics = step(given, batch)
    with compilations() as later:
        for batch in rest:
            state, metrics = step(state, batch)
    return Ran(reference, step, program, given, state, metrics, tuple(later))


def test_three_steps_equal_the_unsharded_ones(ran: Ran):
    reference = ran.reference
    triples = [
        (jax.tree_util.keystr(path), *(np.asarray(leaf, np.float64) for leaf in leaves))
        for (path, wanted), *others in zip(
            jax.tree_util.tree_leaves_with_path(reference.after),
            jax.tree.leaves(reference.before),
            jax.tree.leaves(ran.after),
            strict=True,
        )
        for leaves in [(wanted, *others)]
    ]
    changes = {path: np.abs(wanted - start).max() for path, wanted, start, _ in triples}
    # A leaf whose true gradient is zero, such as the bias of the keys (softmax does not see what is added to all
    # scores of a query), holds nothing but rounding: it can only be compared with the leaves that move.
    noise = 1e-6 * np.median(list(changes.values()))
    wrong = []
    for path, wanted, _, got in triples:
        error, largest = np.abs(got - wanted).max(), np.abs(wanted).max()
        # Against the change as well: a small change of a large leaf could be quite wrong and hardly be seen.
        bound = min(1e-5 * largest, 1e-3 * changes[path] + 5e-7 * largest) + noise
        if not error <= bound:
            wrong.append(f"{path} is off by {error:.1e}, which is more than {bound:.1e}")
    assert not wrong
    np.testing.assert_allclose(ran.metrics["loss"], reference.metrics["loss"], rtol=1e-5)


def test_every_donated_leaf_gives_its_memory_to_a_result(ran: Ran):
    state = jax.tree.leaves(ran.given)
    header = ran.program.as_text().splitlines()[0]
    assert len(re.findall(r"(?:may|must)-alias", header)) == len(state)
    held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in state)
    assert ran.program.memory_analysis().alias_size_in_bytes == held
    assert all(leaf.is_deleted() for leaf in state)


def test_no_later_step_compiles_anything(ran: Ran):
    assert ran.later == ()


def test_the_state_leaves_a_step_as_it_came(ran: Ran):
    assert ran.step.out_shardings[0] == ran.step.in_shardings[0]
    for leaf, place in zip(jax.tree.leaves(ran.after), jax.tree.leaves(ran.step.in_shardings[0]), strict=True):
        assert leaf.sharding == place
        assert not leaf.weak_type
