"""Spec: which mesh axes split which dim of an array. The planner's own word for a PartitionSpec.

A spec is a tuple with one entry per dim; an entry is the tuple of mesh axes that split the dim, major
first: `(("x", "y"), (), ("z",))` prints as `P((x,y), -, z)`. Trailing dims are never left out, so two
specs of one array are equal exactly when they place it equally.
"""

from collections.abc import Mapping

Spec = tuple[tuple[str, ...], ...]


def replicated(rank: int) -> Spec:
    """The spec that splits nothing."""
    return ((),) * rank


def axes_of(spec: Spec) -> tuple[str, ...]:
    """All mesh axes a spec uses, in order of the dims.

    >>> axes_of((("x", "y"), (), ("z",)))
    ('x', 'y', 'z')
    """
    return tuple(axis for dim in spec for axis in dim)


def ways(axes: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    """The number of pieces that `axes` cut a dim into.

    >>> ways(("x", "y"), {"x": 2, "y": 4})
    8
    """
    count = 1
    for axis in axes:
        count *= sizes[axis]
    return count


def pieces(spec: Spec, sizes: Mapping[str, int]) -> int:
    """The number of different shards of an array under `spec`."""
    return ways(axes_of(spec), sizes)


def divides(spec: Spec, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
    """Whether every dim of `shape` divides evenly."""
    return all(extent % ways(axes, sizes) == 0 for extent, axes in zip(shape, spec, strict=True))


def show(spec: Spec) -> str:
    """One line, which `parse` reads back.

    >>> show((("x", "y"), (), ("z",)))
    'P((x,y), -, z)'
    """
    return f"P({', '.join(_show_dim(dim) for dim in spec)})"


def _show_dim(dim: tuple[str, ...]) -> str:
    if len(dim) > 1:
        return f"({','.join(dim)})"
    return dim[0] if dim else "-"


def parse(text: str) -> Spec:
    """The inverse of `show`. Raises ValueError on anything else.

    >>> parse("P((x,y), -, z)")
    (('x', 'y'), (), ('z',))
    """
    body = text.strip()
    if not (body.startswith("P(") and body.endswith(")")):
        raise ValueError(f"{text!r} is not a spec; write it as P((x,y), -, z).")
    dims: list[tuple[str, ...]] = []
    rest = body[2:-1].strip()
    while rest:
        if rest.startswith("("):
            inner, _, rest = rest[1:].partition(")")
            dims.append(tuple(axis.strip() for axis in inner.split(",") if axis.strip()))
            rest = rest.strip().removeprefix(",").strip()
        else:
            head, _, rest = rest.partition(",")
            head, rest = head.strip(), rest.strip()
            dims.append(() if head == "-" else (head,))
    return tuple(dims)
