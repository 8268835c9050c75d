"""The one-line language of rules: it reads back what it prints, and says what is wrong with anything else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.graph.notation import parse, show
from planner.graph.rule import Rule


@pytest.mark.parametrize(
    "text, operands, results",
    [
        ("b i k, b k j -> b i j", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)]),
        ("a b, -> a b", [(2, 3), ()], [(2, 3)]),
        ("-> a b", [], [(2, 3)]),
        ("-> a b", [()], [(2, 3)]),
        ("a b ->", [(2, 3)], [()]),
        (", ->", [(), ()], [()]),
        ("a (h e) -> a h e", [(2, 12)], [(2, 3, 4)]),
        ("a b! -> a z!, a z!", [(2, 9)], [(2, 3), (2, 3)]),
        ("n x1! (g c), w1! c (g o) -> n y1! (g o)", [(2, 8, 6), (3, 2, 9)], [(2, 8, 9)]),
        ("v1 d2, b1 b2 _ -> b1 b2 d2", [(9, 4), (2, 3, 1)], [(2, 3, 4)]),
    ],
)
def test_a_rule_reads_back_as_it_was_written(text, operands, results):
    rule = parse(text, operands, results)
    assert show(rule) == text
    assert parse(show(rule), operands, results) == rule


def test_extents_come_from_where_a_factor_stands_alone():
    rule = parse("a (h e!) -> a h e", [(2, 12)], [(2, 3, 4)])
    assert rule.sizes == {"a": 2, "h": 3, "e": 4}
    assert rule.splittable == ("a", "h")
    assert rule.whole == {"e"}


def test_extents_that_stand_nowhere_alone_are_given():
    assert parse("(r a b) -> (r a b)", [(24,)], [(24,)], {"r": 2, "a": 3}).sizes == {"r": 2, "a": 3, "b": 4}


@st.composite
def rules(draw):
    """Rules of up to three values whose dims hold up to three of six factors."""
    sizes = draw(st.fixed_dictionaries({f: st.integers(2, 5) for f in ("a", "b", "c2", "Head", "k", "z9")}))

    def value():
        order = draw(st.permutations(list(sizes)))
        cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=4)))
        return tuple(tuple(order[i:j]) for i, j in zip([0, *cuts], cuts, strict=False))

    operands = tuple(value() for _ in range(draw(st.integers(0, 2))))
    results = tuple(value() for _ in range(draw(st.integers(1, 2))))
    used = dict.fromkeys(f for dims in operands + results for dim in dims for f in dim)
    whole = draw(st.sets(st.sampled_from(list(used)))) if used else set()
    return Rule(operands, results, {f: sizes[f] for f in used}, frozenset(whole))


@given(rules())
def test_what_is_shown_is_parsed(rule):
    def shapes(values):
        return [tuple(math.prod(rule.sizes[f] for f in dim) for dim in dims) for dims in values]

    assert parse(show(rule), shapes(rule.operands), shapes(rule.results), rule.sizes) == rule


@pytest.mark.parametrize(
    "text, operands, message",
    [
        ("a b", [(2, 3)], "The rule 'a b' needs exactly one arrow; write it as 'i k, k j -> i j'."),
        (
            "a, b -> a",
            [(2,)],
            "The rule 'a, b -> a' has 2 operand(s), the op has 1; "
            "separate them by commas, a scalar is an empty place.",
        ),
        (
            "a -> a",
            [(2, 3)],
            "The rule 'a -> a' gives 1 dims to a value of shape (2, 3); name every dim, '_' for extent 1.",
        ),
        (
            "(a b -> a",
            [(6,)],
            "The rule '(a b -> a' does not close a parenthesis; write a merged dim as '(h e)'.",
        ),
        (
            "() -> a",
            [(6,)],
            "The rule '() -> a' has a misplaced ')'; a merged dim is '(h e)', not nested or empty.",
        ),
        (
            "a a -> a",
            [(2, 2)],
            "The rule 'a a -> a' names 'a' twice in one value; give each dim its own factor.",
        ),
        (
            "a + -> a",
            [(2, 2)],
            "The rule 'a + -> a' has '+' after 'a'; use factors, '_', '!', parentheses and commas only.",
        ),
        ("a _! -> a", [(2, 1)], "The rule 'a _! -> a' has '!' after 'a _'; put '!' after a factor."),
        ("(b c) -> a", [(6,)], "The rule '(b c) -> a' leaves the extent of 'b' open; give it in sizes."),
        (
            "a b -> a",
            [(3, 4)],
            "The rule 'a b -> a' makes 'a' 3 long where an array has 2; give one factor one extent.",
        ),
        (
            "_ b -> b",
            [(3, 2)],
            "The rule '_ b -> b' makes '_' 1 long where an array has 3; give one factor one extent.",
        ),
    ],
)
def test_a_malformed_rule_is_one_sentence_with_its_remedy(text, operands, message):
    with pytest.raises(InputError) as error:
        parse(text, operands, [(2,)])
    assert str(error.value) == message
