"""Restricting a problem and coming back changes no cost and no byte."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.problem import Problem, Usage, cost_of, peak_of, usage_over_time
from planner.cost.restrict import restrict, widen


@st.composite
def cases(draw):
    """A small problem with shared tables, the strategies that are kept of each node, and a choice among
    them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    nodes = range(len(counts))
    shared = {k: rng.random(k) for k in set(counts)}
    grids = {(a, b): rng.random((a, b)) for a in set(counts) for b in set(counts)}
    edges = tuple((int(u), int(w)) for u, w in rng.integers(0, len(counts), (draw(st.integers(0, 6)), 2)))
    problem = Problem(
        node_costs=tuple(shared[k] for k in counts),
        edges=edges,
        edge_costs=tuple(grids[counts[u], counts[w]] for u, w in edges),
        node_usages=tuple(Usage(v, v, v + 2, shared[counts[v]]) for v in nodes),
        edge_usages=tuple(Usage(e, 0, 1, grids[counts[u], counts[w]]) for e, (u, w) in enumerate(edges)),
        usage_limit=7.0,
        horizon=len(counts) + 2,
    )
    subsets = {
        k: np.array(sorted(draw(st.sets(st.integers(0, k - 1), min_size=1))), dtype=np.int64)
        for k in set(counts)
    }
    kept = [subsets[k] for k in counts]
    choice = tuple(draw(st.integers(0, len(indices) - 1)) for indices in kept)
    return problem, kept, choice


@settings(deadline=None)
@given(cases())
def test_a_restricted_choice_widens_to_the_same_cost_and_usage(case):
    problem, kept, choice = case
    small = restrict(problem, kept)
    wide = widen(choice, kept)
    assert cost_of(small, choice) == cost_of(problem, wide)
    np.testing.assert_array_equal(usage_over_time(small, choice), usage_over_time(problem, wide))
    assert peak_of(small, choice) == peak_of(problem, wide)
    assert (small.usage_limit, small.horizon, small.edges) == (7.0, problem.horizon, problem.edges)
    assert all(c in indices for c, indices in zip(wide, kept, strict=True))


@settings(deadline=None)
@given(cases())
def test_tables_that_were_shared_stay_shared(case):
    problem, kept, _ = case
    small = restrict(problem, kept)
    before = {(id(table), id(indices)) for table, indices in zip(problem.node_costs, kept, strict=True)}
    assert len({id(table) for table in small.node_costs}) == len(before)
    ends = [
        (id(t), id(kept[u]), id(kept[w])) for t, (u, w) in zip(problem.edge_costs, problem.edges, strict=True)
    ]
    assert len({id(table) for table in small.edge_costs}) == len(set(ends))


def test_keeping_all_keeps_all():
    problem = Problem((np.array([1.0, 2.0]),) * 2, ((0, 1),), (np.array([[0.0, 1.0], [2.0, 3.0]]),))
    everything = np.arange(2)
    same = restrict(problem, [everything, everything])
    for choice in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert cost_of(same, choice) == cost_of(problem, widen(choice, [everything, everything]))
