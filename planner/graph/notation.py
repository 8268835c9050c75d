"""The one-line language of rules: `b i k, k j -> b i j`.

    operands, comma between  ->  results, comma between
    i        a dim walked by factor i           _        a dim of extent one
    (h e)    a merged dim, major factor first   i!       factor i must stay whole
    i~1+2    a device that holds a part of factor i reads a row of its neighbours before it, and two after
    k.       the op finishes by itself what splitting factor k leaves partial
    nothing  a scalar or literal: `a b, -> a b` has a scalar second operand

A factor has one extent. It is read where the factor stands alone; a factor that only stands inside
parentheses gets what its neighbours leave over, or is given in `sizes`. What a rule leaves out for the sake
of XLA's partitioner (`Rule.apart`, `Rule.filling`) is no part of the line.
"""

import re
from collections.abc import Mapping, Sequence

from planner.errors import InputError
from planner.graph.rule import Dim, Dims, Halo, Rule

Shape = Sequence[int]

_TOKEN = re.compile(r"\s*([A-Za-z][A-Za-z0-9]*(?:!|\.|~\d+\+\d+)?|[()_])")


def parse(
    text: str,
    operand_shapes: Sequence[Shape],
    result_shapes: Sequence[Shape],
    sizes: Mapping[str, int] | None = None,
) -> Rule:
    """The rule that `text` says, for values of these shapes.

    sizes: extents of factors that never stand alone. Raises InputError on malformed text or extents that
    contradict each other.

    >>> parse("i k, k j -> i j", [(2, 3), (3, 4)], [(2, 4)]).reduced
    ('k',)
    """
    if text.count("->") != 1:
        raise InputError(f"The rule {text!r} needs exactly one arrow; write it as 'i k, k j -> i j'.")
    left, right = text.split("->")
    whole: set[str] = set()
    finished: set[str] = set()
    halos: list[Halo] = []
    operands = _values(text, left, len(operand_shapes), "operand", whole, finished, halos)
    results = _values(text, right, len(result_shapes), "result", whole, finished, [])
    shaped = list(zip(operands + results, [*operand_shapes, *result_shapes], strict=True))
    for dims, shape in shaped:
        if len(dims) != len(shape):
            raise InputError(
                f"The rule {text!r} gives {len(dims)} dims to a value of shape {tuple(shape)}; "
                "name every dim, '_' for extent 1."
            )
    found = _extents(
        text, [(dim, n) for dims, shape in shaped for dim, n in zip(dims, shape, strict=True)], sizes or {}
    )
    return Rule(operands, results, found, frozenset(whole), tuple(halos), frozenset(finished))


def show(rule: Rule) -> str:
    """The mathematics of the rule in one line, which `parse` reads back given the same shapes.

    >>> show(parse("b (h e)! -> b h e", [(2, 12)], [(2, 4, 3)]))
    Traceback (most recent call last):
    planner.errors.InputError: The rule 'b (h e)! -> b h e' has '!' after 'b (h e)'; put '!' after a factor.
    >>> show(parse("b (h e!) -> b h e", [(2, 12)], [(2, 4, 3)]))
    'b (h e!) -> b h e!'
    """
    halos = {(halo.operand, halo.dim): f"~{halo.before}+{halo.after}" for halo in rule.halos}
    left = ", ".join(
        " ".join(_show_dim(dim, rule, halos.get((place, d), "")) for d, dim in enumerate(dims))
        for place, dims in enumerate(rule.operands)
    )
    right = ", ".join(" ".join(_show_dim(dim, rule, "") for dim in dims) for dims in rule.results)
    return " ".join(f"{left} -> {right}".split())


def _show_dim(dim: Dim, rule: Rule, halo: str) -> str:
    marked = [
        factor + "!" * (factor in rule.whole) + "." * (factor in rule.finished) + halo * (factor == dim[0])
        for factor in dim
    ]
    if not marked:
        return "_"
    return marked[0] if len(marked) == 1 else f"({' '.join(marked)})"


def _values(
    text: str, side: str, count: int, role: str, whole: set[str], finished: set[str], halos: list[Halo]
) -> tuple[Dims, ...]:
    parts = side.split(",")
    if count == 0 and not side.strip():
        return ()
    if len(parts) != count:
        raise InputError(
            f"The rule {text!r} has {len(parts)} {role}(s), the op has {count}; separate them by commas, "
            "a scalar is an empty place."
        )
    return tuple(_dims(text, part, place, whole, finished, halos) for place, part in enumerate(parts))


def _dims(text: str, part: str, place: int, whole: set[str], finished: set[str], halos: list[Halo]) -> Dims:
    """Dims of one value, the one at `place`; adds the marked factors to `whole` and `finished`, and halos to
    `halos`."""
    dims: list[Dim] = []
    merged: list[str] | None = None
    seen: set[str] = set()
    at = 0
    while part[at:].strip():
        match = _TOKEN.match(part, at)
        if match is None:
            before = part[:at].strip()
            bad = part[at:].strip()[0]
            remedy = (
                "put '!' after a factor"
                if bad == "!"
                else "use factors, '_', '!', parentheses and commas only"
            )
            raise InputError(f"The rule {text!r} has {bad!r} after {before!r}; {remedy}.")
        at = match.end()
        token = match.group(1)
        if token == "(" and merged is None:
            merged = []
        elif token == ")" and merged:
            dims.append(tuple(merged))
            merged = None
        elif token == "_" and merged is None:
            dims.append(())
        elif token in "()_":
            raise InputError(
                f"The rule {text!r} has a misplaced {token!r}; a merged dim is '(h e)', not nested or empty."
            )
        else:
            factor, _, rows = token.rstrip("!.").partition("~")
            if factor in seen:
                raise InputError(
                    f"The rule {text!r} names {factor!r} twice in one value; give each dim its own factor."
                )
            seen.add(factor)
            if token.endswith("!"):
                whole.add(factor)
            if token.endswith("."):
                finished.add(factor)
            if rows:
                before, after = rows.split("+")
                halos.append(Halo(place, len(dims), int(before), int(after)))
            if merged is None:
                dims.append((factor,))
            else:
                merged.append(factor)
    if merged is not None:
        raise InputError(f"The rule {text!r} does not close a parenthesis; write a merged dim as '(h e)'.")
    return tuple(dims)


def _extents(text: str, dims: list[tuple[Dim, int]], given: Mapping[str, int]) -> dict[str, int]:
    """The extent of every factor, in order of appearance. Raises InputError if they contradict each other."""
    known = dict(given)
    for dim, extent in sorted(dims, key=lambda pair: len(pair[0])):
        unknown = [factor for factor in dim if factor not in known]
        product = 1
        for factor in dim:
            product *= known.get(factor, 1)
        if len(unknown) == 1 and product and extent % product == 0:
            known[unknown[0]] = extent // product
        elif unknown:
            raise InputError(f"The rule {text!r} leaves the extent of {unknown[0]!r} open; give it in sizes.")
        elif product != extent:
            said = " ".join(dim) or "_"
            raise InputError(
                f"The rule {text!r} makes {said!r} {product} long where an array has {extent}; "
                "give one factor one extent."
            )
    return {factor: known[factor] for factor in dict.fromkeys(f for dim, _ in dims for f in dim)}
