"""Indexer: objects by key and by index value, with listeners. The memory of an informer; no I/O."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from gangline.api.meta import Object

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
Index = Callable[[T], Iterable[str]]
Listener = Callable[[T | None, T | None], None]


class Key(NamedTuple):
    """Namespace (empty for cluster-scoped kinds) and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(item: Object) -> Key:
    return Key(item.metadata.namespace, item.metadata.name)


class Store(Generic[T]):
    """The latest known state of each object."""

    def __init__(self, indexes: Mapping[str, Index[T]]) -> None:
        self._objects: dict[Key, T] = {}
        self._indexes = dict(indexes)
        self._filed: dict[str, dict[str, set[Key]]] = {name: {} for name in indexes}
        self._listeners: list[Listener[T]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> T | None:
        """Return the object with a key; None if there is none."""
        return self._objects.get(key)

    def items(self) -> list[T]:
        """Return all objects, as of now."""
        return list(self._objects.values())

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects with this index value, ordered by key."""
        return [self._objects[key] for key in sorted(self._filed[index].get(value, ()))]

    def add_index(self, name: str, index: Index[T]) -> None:
        """Add an index function and index all existing objects."""
        self._indexes[name] = index
        self._filed[name] = {}
        for key, item in self._objects.items():
            self._file(name, key, item)

    def add_listener(self, listener: Listener[T]) -> None:
        """Call ``listener`` on each change, and immediately for each existing object."""
        self._listeners.append(listener)
        for item in self.items():
            _tell(listener, None, item)

    def put(self, new: T) -> None:
        """Store the state of an object, unless it is known already."""
        key = key_of(new)
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != new.metadata.uid:
            # It was deleted and recreated between two watches: report both changes.
            self.remove(key)
            old = None
        if old is not None and _same_revision(old, new):
            return
        self._unfile(key, old)
        self._objects[key] = new
        for name in self._indexes:
            self._file(name, key, new)
        self._notify(old, new)

    def remove(self, key: Key) -> None:
        """Remove an object, if it exists."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._unfile(key, old)
            self._notify(old, None)

    def replace(self, items: list[T], namespace: str | None = None) -> None:
        """Replace the content of one namespace, or of all: objects that are not in ``items`` are
        removed.
        """
        present = {key_of(item) for item in items}
        scope = (key for key in self._objects if namespace in (None, key.namespace))
        for key in [key for key in scope if key not in present]:
            self.remove(key)
        for item in items:
            self.put(item)

    def replay(self) -> None:
        """Call the listeners for every object as if it had changed."""
        for item in self.items():
            self._notify(item, item)

    def _values(self, name: str, item: T) -> set[str]:
        return set(self._indexes[name](item))

    def _file(self, name: str, key: Key, item: T) -> None:
        for value in self._values(name, item):
            self._filed[name].setdefault(value, set()).add(key)

    def _unfile(self, key: Key, old: T | None) -> None:
        if old is None:
            return
        for name, filed in self._filed.items():
            for value in self._values(name, old):
                keys = filed.get(value, set())
                keys.discard(key)
                if not keys:
                    filed.pop(value, None)

    def _notify(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            _tell(listener, old, new)


def _tell(listener: Listener[T], old: T | None, new: T | None) -> None:
    try:
        listener(old, new)
    except Exception:
        # An error with one object must not keep the listener from the others.
        subject = new or old
        log.exception("listener failed", extra={"object": str(subject and key_of(subject))})


def _same_revision(old: Object, new: Object) -> bool:
    version = new.metadata.resource_version
    return bool(version) and old.metadata.resource_version == version
