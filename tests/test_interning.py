"""Interning: equal arrays are one object, and arrays that only look alike are not."""

import numpy as np

from planner.solvers.interning import Interner, _digest


def test_equal_arrays_are_one_object() -> None:
    intern = Interner()
    for table in (np.arange(3.0), np.arange(1000.0), np.arange(7) % 2 == 0, np.arange(99) % 2 == 0):
        assert intern(table.copy()) is intern(table.copy())
    assert intern(np.arange(12.0).reshape(3, 4)) is not intern(np.arange(12.0).reshape(4, 3))
    assert intern(np.zeros(9)) is not intern(np.zeros(9, dtype=np.int64))


def test_arrays_of_one_digest_are_told_apart() -> None:
    intern = Interner()
    one = np.arange(128.0)
    other = one.copy()
    other[[1, 3]] = other[[3, 1]]  # two words that are not in the sample
    assert _digest(one) == _digest(other)
    assert intern(one) is not intern(other)
    assert intern(other.copy()) is intern(other)
    assert intern(one.copy()) is intern(one)


def test_a_matrix_and_its_transpose_are_told_apart() -> None:
    intern = Interner()
    table = np.arange(400.0).reshape(20, 20)
    assert intern(table.T) is not intern(table)
    assert np.array_equal(intern(table.T), table.T)
