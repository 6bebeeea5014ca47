"""Indexer: objects by key and by index value, with listeners. The memory of an informer; no I/O."""

import logging
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Generic, NamedTuple, TypeVar

from gangline.api.meta.objects import Object
from gangline.kube.turns import Turns

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
IndexFunction = Callable[[T], Iterable[str]]
Listener = Callable[[T | None, T | None], None]


class ObjectKey(NamedTuple):
    """Namespace (empty for cluster-scoped kinds) and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def object_key(item: Object) -> ObjectKey:
    """Return the key of an object."""
    return ObjectKey(item.metadata.namespace, item.metadata.name)


class Indexer(Generic[T]):
    """The latest known state of each object."""

    def __init__(self, indexes: Mapping[str, IndexFunction[T]]) -> None:
        self._objects: dict[ObjectKey, T] = {}
        self._indexes = dict(indexes)
        self._keys_by_value: dict[str, dict[str, set[ObjectKey]]] = {name: {} for name in indexes}
        self._listeners: list[Listener[T]] = []

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: ObjectKey) -> T | None:
        """Return the object with a key; None if there is none."""
        return self._objects.get(key)

    def items(self) -> list[T]:
        """Return all objects, as of now."""
        return list(self._objects.values())

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects with this index value, ordered by key."""
        return [self._objects[key] for key in sorted(self._keys_by_value[index].get(value, ()))]

    def index_values(self, index: str) -> Set[str]:
        """Return the values that an index has for at least one object."""
        return self._keys_by_value[index].keys()

    def add_index(self, name: str, index: IndexFunction[T]) -> None:
        """Add an index function and index all existing objects."""
        self._indexes[name] = index
        self._keys_by_value[name] = {}
        for key, item in self._objects.items():
            self._add_to_index(name, key, item)

    def add_listener(self, listener: Listener[T]) -> None:
        """Call ``listener`` on each change, and immediately for each existing object."""
        self._listeners.append(listener)
        for item in self.items():
            _call_listener(listener, None, item)

    def put(self, new: T) -> None:
        """Store the state of an object, unless it is known already."""
        key = object_key(new)
        old = self._objects.get(key)
        if old is not None and old.metadata.uid != new.metadata.uid:
            # It was deleted and recreated between two watches: report both changes.
            self.remove(key)
            old = None
        if old is not None and _same_revision(old, new):
            return
        self._remove_from_indexes(key, old)
        self._objects[key] = new
        for name in self._indexes:
            self._add_to_index(name, key, new)
        self._notify(old, new)

    def remove(self, key: ObjectKey) -> None:
        """Remove an object, if it exists."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._remove_from_indexes(key, old)
            self._notify(old, None)

    async def replace(self, items: list[T], namespace: str | None = None) -> None:
        """Replace the content of one namespace, or of all: objects that are not in ``items`` are
        removed.

        Other tasks run in between, as between the events of a watch: the listeners of many objects
        take seconds.
        """
        turns = Turns()
        if self._objects:
            present = {object_key(item) for item in items}
            scope = (key for key in self._objects if namespace in (None, key.namespace))
            for key in [key for key in scope if key not in present]:
                self.remove(key)
                await turns.give_way()
        for item in items:
            self.put(item)
            await turns.give_way()

    def resync(self) -> None:
        """Call the listeners for every object as if it had changed."""
        for item in self.items():
            self._notify(item, item)

    def _add_to_index(self, name: str, key: ObjectKey, item: T) -> None:
        for value in set(self._indexes[name](item)):
            self._keys_by_value[name].setdefault(value, set()).add(key)

    def _remove_from_indexes(self, key: ObjectKey, old: T | None) -> None:
        if old is None:
            return
        for name, filed in self._keys_by_value.items():
            for value in set(self._indexes[name](old)):
                keys = filed.get(value, set())
                keys.discard(key)
                if not keys:
                    filed.pop(value, None)

    def _notify(self, old: T | None, new: T | None) -> None:
        for listener in self._listeners:
            _call_listener(listener, old, new)


def _call_listener(listener: Listener[T], old: T | None, new: T | None) -> None:
    try:
        listener(old, new)
    except Exception:
        # An error with one object must not keep the listener from the others.
        subject = new or old
        log.exception("listener failed", extra={"object": str(subject and object_key(subject))})


def _same_revision(old: Object, new: Object) -> bool:
    version = new.metadata.resource_version
    return bool(version) and old.metadata.resource_version == version
