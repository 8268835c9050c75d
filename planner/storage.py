"""Dataclasses to JSON and back, checked by their annotations; files that are written whole or not at all.

Specs and sites are kept as one line of text each, so that two plan files compare well line by line:
`"use 12 0 3:jaxpr": "P((x,y), -) > P(x, -)"` says that operand 0 of equation 12, inside the `jaxpr` of
equation 3, passes through two specs. A number that is not finite is kept as the text `inf`, because JSON has
no word for it.
"""

import dataclasses
import json
import math
import os
import tempfile
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.graph.graph import Site
from planner.sharding.spec import Spec, parse, show

Chain = tuple[Spec, ...]


def show_site(site: Site) -> str:
    """One line, which `parse_site` reads back.

    >>> show_site(Site("use", ((3, "jaxpr", None), (2, "branches", 1)), 12, 0))
    'use 12 0 3:jaxpr 2:branches:1'
    """
    steps = (f"{eqn}:{name}" if sub is None else f"{eqn}:{name}:{sub}" for eqn, name, sub in site.path)
    return " ".join([site.kind, str(site.eqn), str(site.index), *steps])


def parse_site(text: str) -> Site:
    """The inverse of `show_site`. Raises ValueError on anything else.

    >>> parse_site("use 12 0 3:jaxpr 2:branches:1")
    Site(kind='use', path=((3, 'jaxpr', None), (2, 'branches', 1)), eqn=12, index=0)
    """
    kind, eqn, index, *steps = text.split(" ")
    if kind not in ("in", "out", "use", "ret"):
        raise ValueError(f"{text!r} is not a site; write it as 'use 12 0 3:jaxpr'.")
    path: list[tuple[int, str, int | None]] = []
    for step in steps:
        at, name, *sub = step.split(":")
        path.append((int(at), name, int(sub[0]) if sub else None))
    return Site(kind, tuple(path), int(eqn), int(index))


def _site_order(site: Site) -> tuple[Any, ...]:
    path = tuple((eqn, name, -1 if sub is None else sub) for eqn, name, sub in site.path)
    return path, site.eqn, site.kind, site.index


def encode(hint: Any, value: Any) -> Any:
    """`value`, of the annotated type `hint`, as what `json` can write."""
    if hint == Spec:
        return show(value)
    if dataclasses.is_dataclass(hint):
        return {name: encode(kind, getattr(value, name)) for name, kind in _kept(hint).items()}
    if typing.get_origin(hint) is Mapping:
        key, item = typing.get_args(hint)
        if key is Site:
            sites = sorted(value, key=_site_order)
            return {show_site(site): " > ".join(show(spec) for spec in value[site]) for site in sites}
        return {str(name): encode(item, entry) for name, entry in value.items()}
    if typing.get_origin(hint) is tuple:
        return [encode(typing.get_args(hint)[0], item) for item in value]
    if hint is float:
        number = float(value)
        return number if math.isfinite(number) else str(number)
    return hint(value)


def _kept(hint: Any) -> dict[str, Any]:
    """The fields that a file keeps; what may be anything, like a pytree of the user's, it cannot."""
    return {name: kind for name, kind in typing.get_type_hints(hint).items() if kind is not Any}


def decode(hint: Any, data: Any, where: str) -> Any:
    """The inverse of `encode`. Raises ValueError, naming the entry `where` it went wrong."""
    if hint == Spec:
        return parse(_typed(str, data, where))
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, _typed(dict, data, where), where)
    if typing.get_origin(hint) is Mapping:
        key, item = typing.get_args(hint)
        entries = _typed(dict, data, where)
        if key is Site:
            return {
                parse_site(name): _decode_chain(text, f"{where}.{name}") for name, text in entries.items()
            }
        return {name: decode(item, entry, f"{where}.{name}") for name, entry in entries.items()}
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(
            decode(item, entry, f"{where}[{i}]") for i, entry in enumerate(_typed(list, data, where))
        )
    if hint is float:
        return _decode_float(data, where)
    return _typed(hint, data, where)


def _decode_dataclass(cls: Any, data: dict[str, Any], where: str) -> Any:
    hints = _kept(cls)
    missing, extra = sorted(set(hints) - set(data)), sorted(set(data) - set(hints))
    if missing or extra:
        raise ValueError(
            f"{where} lacks {missing}" if missing else f"{where} has the foreign entries {extra}"
        )
    return cls(**{name: decode(hints[name], data[name], f"{where}.{name}") for name in hints})


def _decode_chain(text: Any, where: str) -> Chain:
    return tuple(parse(spec) for spec in _typed(str, text, where).split(" > ")) if text else ()


def _decode_float(data: Any, where: str) -> float:
    if data in ("inf", "-inf", "nan"):
        return float(data)
    if isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    return _typed(float, data, where)


def _typed(cls: type, data: Any, where: str) -> Any:
    if type(data) is not cls:
        raise ValueError(f"{where} is {type(data).__name__}, not {cls.__name__}")
    return data


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Writes `data` as JSON, one entry a line, whole or not at all. Raises InputError when it cannot."""
    target = Path(path)
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    try:
        if target.exists() and not target.is_file():  # a pipe or /dev/stdout cannot be renamed over
            target.write_text(text, encoding="utf-8")
            return
        # Beside the target, because a rename is only atomic inside one file system.
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(scratch, 0o644)
            os.replace(scratch, target)
        except BaseException:
            os.unlink(scratch)
            raise
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{str(path)!r} cannot be written ({reason}). Name a file in a folder that exists."
        ) from error
