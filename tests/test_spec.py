"""Specs print and parse; they count and divide as arrays do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.sharding.spec import axes_of, divides, parse, pieces, replicated, show, ways

AXES = ("x", "y", "z", "data", "model_2")


@st.composite
def specs(draw):
    """Specs of up to four dims, each axis used once at most."""
    left = draw(st.permutations(AXES))
    dims = []
    for _ in range(draw(st.integers(0, 4))):
        count = draw(st.integers(0, min(3, len(left))))
        dims.append(tuple(left[:count]))
        left = left[count:]
    return tuple(dims)


@given(specs())
def test_specs_print_and_parse(spec):
    assert parse(show(spec)) == spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("P()", ()),
        ("P(-)", ((),)),
        ("P(x)", (("x",),)),
        (" P( (x, y) , - ,z ) ", (("x", "y"), (), ("z",))),
        ("P((x))", (("x",),)),
    ],
)
def test_known_texts(text, spec):
    assert parse(text) == spec


@pytest.mark.parametrize("text", ["", "x", "(x, -)", "P(x", "PartitionSpec('x')"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a spec; write it as P\(\(x,y\), -, z\)\."):
        parse(text)


@given(specs(), st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_pieces_and_divides_agree_with_cutting_an_array(spec, extents):
    sizes = dict(zip(AXES, (2, 3, 1, 4, 2), strict=True))
    shape = tuple(extents[: len(spec)])
    parts, even = [np.zeros(shape, np.int8)], True
    for dim, axes in enumerate(spec):
        even = even and shape[dim] % ways(axes, sizes) == 0
        parts = [piece for part in parts for piece in np.array_split(part, ways(axes, sizes), axis=dim)]
    assert len(parts) == pieces(spec, sizes)
    assert divides(spec, shape, sizes) == even
    if even:
        assert len({part.shape for part in parts}) == 1


def test_replicated_splits_nothing():
    assert replicated(3) == ((), (), ())
    assert axes_of(replicated(3)) == ()
    assert pieces(replicated(3), {"x": 8}) == 1
