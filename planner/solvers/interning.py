"""Interner: equal arrays become one object, so that work on them can be recalled by `id`."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Made = TypeVar("Made")


class Interner:
    """Makes equal arrays one object, and remembers what was made of them.

    Keeps every array it has seen alive, so that its `id` is never given to another one."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], NDArray[Any]] = {}
        self._made: dict[object, Any] = {}

    def __call__(self, table: NDArray[Any]) -> NDArray[Any]:
        """The one array equal to `table`, contiguous."""
        known = self._by_id.get(id(table))
        if known is not None:
            return known[1]
        content = np.ascontiguousarray(table)
        one = self._by_content.setdefault((content.dtype.str, content.shape, _digest(content)), content)
        self._by_id[id(table)] = (table, one)
        self._by_id[id(one)] = (one, one)
        return one

    def recall(self, key: object, make: Callable[[], Made]) -> Made:
        """What `make` gave under this key the first time. Ids in a key must be of arrays interned here."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def knows(self, key: object) -> bool:
        """Whether `recall` would need no work."""
        return key in self._made


def _digest(table: NDArray[Any]) -> bytes:
    raw = table.reshape(-1).view(np.uint8)
    return raw.tobytes() if raw.size <= 64 else hashlib.blake2b(raw.data, digest_size=32).digest()
