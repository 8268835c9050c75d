"""Which devices take part in a collective together: the four ways HLO writes it, and the mesh axes spanned.

{{0,1},{2,3}}                                           every group, device by device
[2,2]<=[2,2]T(1,0)                                      the devices in that shape, transposed, cut into rows
mesh['x'=2,'y'=2] {'x'}                                 along the named axes of a mesh
mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}       the same, with the devices in another order
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

Groups = tuple[tuple[int, ...], ...]


def groups_of(text: str, devices: int) -> Groups:
    """The groups of one instruction, in any of the four syntaxes; the pairs of a permute.

    >>> groups_of("replica_groups={{0,1},{2,3}}", 4)
    ((0, 1), (2, 3))
    >>> groups_of("replica_groups=[2,2]<=[2,2]T(1,0)", 4)
    ((0, 2), (1, 3))
    >>> groups_of("replica_groups=mesh['x'=2,'y'=2] {'x'}", 4)
    ((0, 2), (1, 3))
    """
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?\)?)\))? ?\{([^}]*)\}", text)
    if mesh:
        return _mesh_groups(*mesh.groups())
    iota = re.search(r"replica_groups=\[([\d,]+)\](<=\[[\d,]+\](?:T\([\d,]+\))?)", text)
    if iota:
        return _rows(_iota(iota.group(2)).reshape(_ints(iota.group(1))))
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}", text)
    if listed and listed.group(1):
        return tuple(tuple(_ints(group)) for group in re.findall(r"\{([\d,]*)\}", listed.group(1)))
    return (tuple(range(devices)),)


def _mesh_groups(axes: str, order: str | None, named: str) -> Groups:
    """Groups along named axes, or along parts of axes: `'x':(2)4` is the part of size 4 with 2 outside it."""
    sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    cuts = {axis: {1, size} for axis, size in sizes.items()}
    wanted: list[tuple[str, int, int]] = []
    for axis, outside, inside in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", named):
        first, last = (int(outside), int(outside) * int(inside)) if inside else (1, sizes[axis])
        cuts[axis] |= {first, last}
        wanted.append((axis, first, last))
    parts = [
        (axis, first, last // first)
        for axis in sizes
        for first, last in zip(sorted(cuts[axis]), sorted(cuts[axis])[1:], strict=False)
    ]
    count = int(np.prod([size for *_, size in parts], dtype=int))
    ids = np.arange(count) if order is None else _device_order(order)
    along = [
        number
        for axis, first, last in wanted
        for number, (part, start, size) in enumerate(parts)
        if part == axis and first <= start and start * size <= last
    ]
    across = [number for number in range(len(parts)) if number not in along]
    group = int(np.prod([parts[number][2] for number in along], dtype=int))
    array = ids.reshape([size for *_, size in parts])
    return _rows(array.transpose(across + along).reshape(count // group, group))


def _device_order(text: str) -> np.ndarray:
    return _iota(text) if text.startswith("[") else np.array(_ints(text))


def _iota(text: str) -> np.ndarray:
    """`<=[4,2]T(1,0)`: the numbers from 0 on, in that shape, transposed."""
    dims, transposed = re.fullmatch(r"(?:<=)?\[([\d,]+)\](?:T\(([\d,]+)\)?)?", text).groups()  # pyright: ignore
    array = np.arange(int(np.prod(_ints(dims)))).reshape(_ints(dims))
    return array.transpose(_ints(transposed) if transposed else range(array.ndim)).reshape(-1)


def _ints(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _rows(array: np.ndarray) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in array)


def mesh_axes(groups: Groups, mesh_shape: Sequence[int], axis_names: Iterable[str]) -> tuple[str, ...] | None:
    """The mesh axes that groups span, devices numbered in the mesh's own order; None if no set of axes fits.

    >>> mesh_axes(((0, 2), (1, 3)), (2, 2), ("x", "y"))
    ('x',)
    """
    names = tuple(axis_names)
    ids = np.arange(int(np.prod(mesh_shape, dtype=int))).reshape(tuple(mesh_shape))
    where = {int(device): place for place, device in np.ndenumerate(ids)}
    if any(device not in where for group in groups for device in group):
        return None
    places = [np.array([where[device] for device in group]) for group in groups]
    varying = {
        tuple(number for number in range(len(names)) if len(set(column[:, number])) > 1) for column in places
    }
    axes = varying.pop() if len(varying) == 1 else ()
    size = int(np.prod([mesh_shape[number] for number in axes], dtype=int))
    if varying or any(len(group) != size for group in groups):
        return None
    return tuple(names[number] for number in axes)


def spanned_axes(groups: Groups, mesh_shape: Sequence[int], axis_names: Iterable[str]) -> tuple[str, ...]:
    """Every mesh axis along which some devices of one group differ, whether or not the groups are whole axes:
    the pairs of a permute seldom are.

    >>> spanned_axes(((0, 1), (1, 2), (2, 3), (3, 0)), (2, 2), ("x", "y"))
    ('x', 'y')
    """
    shape = tuple(mesh_shape)
    varying: set[int] = set()
    for group in groups:
        places = np.array(np.unravel_index(np.array(group), shape))
        varying |= {number for number in range(len(shape)) if len(set(places[number].tolist())) > 1}
    return tuple(name for number, name in enumerate(axis_names) if number in varying)
