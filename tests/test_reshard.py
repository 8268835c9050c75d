"""Reshard against real shards: every collective is played on devices that hold numbered elements.

A device holds what its spec says of an array of distinct numbers. Each step is run as the collective it
names, on what the devices hold, and must leave on every device what the step's spec says. The last slice
must be local.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.sharding.reshard import Step, in_two, reshard
from planner.sharding.spec import Spec, axes_of, parse, pieces, show, ways

MESHES = ({"x": 2, "y": 2, "z": 2}, {"x": 4, "y": 2}, {"x": 2, "y": 4})
Device = tuple[int, ...]
Shards = dict[Device, np.ndarray]


def shards(spec: Spec, sizes: dict[str, int], whole: np.ndarray) -> Shards:
    """What every device holds of the array: the axes of a dim count its pieces, major first."""
    held = {}
    for device in itertools.product(*(range(n) for n in sizes.values())):
        at = dict(zip(sizes, device, strict=True))
        part = whole
        for dim, axes in enumerate(spec):
            piece = 0
            for axis in axes:
                piece = piece * sizes[axis] + at[axis]
            part = np.split(part, ways(axes, sizes), axis=dim)[piece]
        held[device] = part
    return held


def group(device: Device, axes: tuple[str, ...], sizes: dict[str, int]) -> list[Device]:
    """The devices that differ from this one in these axes only, the first axis being the outermost."""
    at = dict(zip(sizes, device, strict=True))
    places = itertools.product(*(range(sizes[axis]) for axis in axes))
    return [tuple((at | dict(zip(axes, place, strict=True))).values()) for place in places]


def all_gather(held: Shards, step: Step, dim: int, sizes: dict[str, int]) -> Shards:
    return {d: np.concatenate([held[o] for o in group(d, step.axes, sizes)], axis=dim) for d in held}


def all_to_all(held: Shards, step: Step, source: int, dim: int, sizes: dict[str, int]) -> Shards:
    """Each device cuts its shard along `dim`, gives the n-th of its group the n-th piece, and joins what it
    gets."""
    after = {}
    for device in held:
        mates = group(device, step.axes, sizes)
        mine = mates.index(device)
        got = [np.split(held[mate], len(mates), axis=dim)[mine] for mate in mates]
        after[device] = np.concatenate(got, axis=source)
    return after


def permute(held: Shards, wanted: Shards, step: Step, sizes: dict[str, int]) -> Shards:
    """Each device takes the shard of one of its group, the one that holds what it wants; each gives once."""
    free = set(held)
    after = {}
    for device in held:
        mates = [o for o in group(device, step.axes, sizes) if np.array_equal(held[o], wanted[device])]
        mates = [o for o in mates if o in free]
        assert mates, f"no device of {device}'s group has its new shard left to give"
        free.remove(mates[0])
        after[device] = held[mates[0]]
    return after


def play(source: Spec, target: Spec, sizes: dict[str, int], whole: np.ndarray) -> None:
    """Run all steps, and hold the devices and the fractions against the specs."""
    now, held = source, shards(source, sizes, whole)
    for step in reshard(source, target, sizes):
        wanted = shards(step.spec, sizes, whole)
        shard = next(iter(held.values())).size
        if step.kind == "permute":
            if pieces(step.spec, sizes) != pieces(now, sizes):  # what arrived was sliced off before, locally
                assert step.spec == target
                arrived = [
                    tuple(a for a in new if a not in old) for old, new in zip(now, target, strict=True)
                ]
                before, now = held, tuple(old + new for old, new in zip(now, arrived, strict=True))
                held = shards(now, sizes, whole)
                assert all(np.isin(held[d], before[d]).all() for d in held)
                shard = next(iter(held.values())).size
            held = permute(held, wanted, step, sizes)
            assert step.fraction == shard / whole.size
        else:
            changed = [d for d, (old, new) in enumerate(zip(now, step.spec, strict=True)) if old != new]
            of_group = {x for o in group(next(iter(held)), step.axes, sizes) for x in held[o].ravel()}
            assert step.fraction == len(of_group) / whole.size
            if step.kind == "all_gather":
                (dim,) = changed
                held = all_gather(held, step, dim, sizes)
            else:
                assert step.kind == "all_to_all"
                (source_dim,) = (d for d in changed if set(step.axes) <= set(now[d]))
                (dim,) = (d for d in changed if d != source_dim)
                held = all_to_all(held, step, source_dim, dim, sizes)
        assert all(np.array_equal(held[d], wanted[d]) for d in held), f"{step} does not lead there"
        for cut, before, after in zip(
            step.spec, source, target, strict=True
        ):  # of which one divides the extent
            assert any(ways(axes, sizes) % ways(cut, sizes) == 0 for axes in (before, after))
        now = step.spec
    final = shards(target, sizes, whole)
    assert all(np.isin(final[d], held[d]).all() for d in held), (
        f"{show(now)} is no slice away from the target"
    )


def all_specs(rank: int, sizes: dict[str, int]) -> list[Spec]:
    """Every spec of an array of this rank, all orders of the axes of a dim included."""
    found = []
    for count in range(len(sizes) + 1):
        for axes in itertools.permutations(sizes, count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), rank - 1):
                edges = (0, *cuts, count)
                found.append(tuple(axes[a:b] for a, b in itertools.pairwise(edges)))
    return found


def numbers(rank: int) -> np.ndarray:
    return np.arange(8**rank).reshape((8,) * rank)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("rank", [1, 2])
def test_every_step_is_the_collective_it_says_for_all_pairs(rank, sizes):
    specs = all_specs(rank, sizes)
    assert len(set(specs)) == len(specs)
    pairs = list(itertools.product(specs, specs))
    for source, target in pairs[:: max(1, len(pairs) // 500)]:
        play(source, target, sizes, numbers(rank))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_step_is_the_collective_it_says_for_sampled_pairs(data):
    sizes = data.draw(st.sampled_from(MESHES))
    specs = st.sampled_from(all_specs(data.draw(st.integers(2, 3)), sizes))
    source, target = data.draw(specs), data.draw(specs)
    play(source, target, sizes, numbers(len(source)))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_dims_that_stay_only_make_the_value_smaller(data):
    """What the edge tables rely on: a pair is priced without the dims that do not change."""
    sizes = data.draw(st.sampled_from(MESHES))
    specs = st.sampled_from(all_specs(2, sizes))
    source, target = data.draw(specs), data.draw(specs)
    used = {*axes_of(source), *axes_of(target)}
    still = tuple(a for a in sizes if a not in used)
    inside = reshard((source[0], still, source[1]), (target[0], still, target[1]), sizes)
    alone = [(s.kind, s.axes, s.fraction) for s in reshard(source, target, sizes)]
    assert [(s.kind, s.axes, s.fraction * ways(still, sizes)) for s in inside] == alone


EXAMPLES = [
    # from, to, mesh, the steps as kind(axes) * fraction
    ("P(x)", "P(x)", "x=8", ""),
    ("P(-)", "P(x)", "x=8", ""),
    ("P(x)", "P(-)", "x=8", "all_gather(x)*1"),
    ("P(x, -)", "P(-, x)", "x=8", "all_to_all(x)*1"),
    ("P(x, -)", "P(y, -)", "x=2 y=2", "permute(x,y)*1/2"),
    ("P(x, -)", "P(y, -)", "x=4 y=2", "all_gather(x)*1"),
    ("P((x,y))", "P((y,x))", "x=4 y=2", "permute(x,y)*1/8"),
    ("P((x,y,z))", "P((x,z,y))", "x=2 y=2 z=2", "permute(y,z)*1/8"),
    ("P((x,y))", "P(x)", "x=4 y=2", "all_gather(y)*1/4"),
    ("P((x,y))", "P(y)", "x=4 y=2", "permute(x,y)*1/8 all_gather(x)*1/2"),
    ("P(y)", "P((x,y))", "x=4 y=2", "permute(x,y)*1/8"),
    ("P(x, y)", "P(y, x)", "x=2 y=2", "permute(x,y)*1/4"),
    ("P((x,y), -)", "P(y, x)", "x=2 y=2", "permute(x,y)*1/4 all_to_all(x)*1/2"),
    ("P((x,y), -)", "P(-, x)", "x=2 y=2", "permute(x,y)*1/4 all_to_all(x)*1/2 all_gather(y)*1/2"),
    ("P((z,y), x)", "P(z, (x,y))", "x=2 y=2 z=2", "all_to_all(y)*1/4"),
    ("P(z, (y,x))", "P(z, y)", "x=2 y=2 z=2", "all_gather(x)*1/4"),
]


@pytest.mark.parametrize(("source", "target", "mesh", "wanted"), EXAMPLES)
def test_the_steps_of_known_moves(source, target, mesh, wanted):
    sizes = {axis: int(size) for axis, _, size in (part.partition("=") for part in mesh.split())}
    steps = reshard(parse(source), parse(target), sizes)
    told = []
    for step in steps:
        parts = round(1 / step.fraction)
        told.append(f"{step.kind}({','.join(step.axes)})*{'1' if parts == 1 else f'1/{parts}'}")
    assert " ".join(told) == wanted


def test_a_gather_in_two_sends_as_much():
    sizes = {"x": 8, "y": 4, "z": 2}
    (whole,) = reshard(parse("P(-, (x,y,z))"), parse("P(-, -)"), sizes)
    first, last = in_two(parse("P(-, (x,y,z))"), whole, sizes)
    assert (first.kind, first.axes, first.spec) == ("all_gather", ("y", "z"), parse("P(-, x)"))
    assert (last.kind, last.axes, last.spec) == ("all_gather", ("x",), parse("P(-, -)"))

    def sent(step: Step) -> float:
        return step.fraction * (1 - 1 / ways(step.axes, sizes))

    assert sent(first) + sent(last) == pytest.approx(sent(whole))
