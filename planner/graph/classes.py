"""Classes: things that turned out to be the same, by union-find with path compression."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Classes(Generic[Key]):
    """Disjoint classes of keys; a key that was never united is a class of its own.

    >>> same = Classes()
    >>> same.unite("a", "b")
    >>> same.find("a") == same.find("b"), same.find("a") == same.find("c")
    (True, False)
    """

    def __init__(self) -> None:
        self._parent: dict[Key, Key] = {}

    def find(self, key: Key) -> Key:
        """The key that stands for the class of `key`."""
        parent = self._parent
        root = key
        while (above := parent.get(root, root)) != root:
            root = above
        while key != root:
            parent[key], key = root, parent[key]
        return root

    def unite(self, first: Key, second: Key) -> None:
        """Put two keys, and all that is the same as either, into one class; it is named as that of
        `first`."""
        one, other = self.find(first), self.find(second)
        if one != other:
            self._parent[other] = one
