"""Informer: a local copy of all objects of a kind, kept current by list and watch.

The copy is of one namespace, of several (each watched separately, so that rights in these suffice),
or of all.

Listeners are called once per change, in order, with ``(old, new)``; ``old`` is None for a new
object, ``new`` is None for a deleted one. They run inside the watch loop, so they must only enqueue
keys.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient, MalformedObject
from gangline.kube.client.collection import Selection
from gangline.kube.errors import ApiError, ConfigError
from gangline.kube.informers.indexer import Indexer, IndexFunction, Listener, ObjectKey, object_key
from gangline.kube.informers.reflector import ListTimes, Reflector

__all__ = ["Informer", "ObjectKey", "object_key"]

T = TypeVar("T", bound=Object)


class Informer(Generic[T]):
    """A local copy of objects. Start ``run`` in a task; wait for ``synced`` before reading."""

    def __init__(  # noqa: PLR0913 - what to follow, and how to keep it
        self,
        client: ApiClient,
        resource: Resource[T],
        namespace: str | Sequence[str] | None = None,
        *,
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        transform: Callable[[T], T] | None = None,
        resync_s: float | None = None,
        page_size: int = 500,
        from_cache: bool = False,
    ) -> None:
        """Configure an informer.

        Args:
            client: the client.
            resource: the kind.
            namespace: one or several namespaces; None, or an empty list, for all.
            labels: a label selector.
            fields: a field selector.
            indexes: index functions by name.
            transform: returns the form of an object that is stored.
            resync_s: interval at which listeners are called for all objects; None: never.
            page_size: objects per page of a list.
            from_cache: the first list may be of the server's watch cache, which is faster, and may
                lack the last changes: see ``reflector``. Not if a missing object would be taken
                for one that does not exist.
        """
        self.resource = resource
        self.transform = transform
        self._resync_s = resync_s
        self._indexer: Indexer[T] = Indexer(indexes or {})
        self._malformed_callback: Callable[[MalformedObject], None] | None = None
        selection = Selection(resource, labels, fields, transform, page_size)
        self._reflectors = [
            Reflector(
                client,
                selection,
                scope,
                self._indexer,
                self._report_malformed,
                from_cache=from_cache,
            )
            for scope in _scopes(namespace)
        ]

    async def run(self) -> None:
        """Keep the copy current until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for follower in self._reflectors:
                tasks.create_task(follower.run())
            if self._resync_s is not None:
                tasks.create_task(self._resync(self._resync_s))

    async def wait_for_sync(self) -> None:
        """Wait until the first list of every namespace is complete."""
        for follower in self._reflectors:
            await follower.has_synced.wait()

    async def wait_for_answer(self) -> None:
        """As ``wait_for_sync``, but do not wait for a kind that the server does not have."""
        for follower in self._reflectors:
            await follower.answered.wait()

    @property
    def has_synced(self) -> bool:
        """Whether the first list of every namespace is complete."""
        return all(follower.has_synced.is_set() for follower in self._reflectors)

    @property
    def problem(self) -> ApiError | ConfigError | None:
        """Why the copy is not current; None while it is."""
        return next((one.problem for one in self._reflectors if one.problem), None)

    @property
    def resource_version(self) -> str:
        """The revision of the copy; of several namespaces, the first one's."""
        return self._reflectors[0].resource_version

    @property
    def list_times(self) -> Sequence[ListTimes]:
        """Durations of the last list of each namespace that has been listed."""
        return [one.list_times for one in self._reflectors if one.list_times is not None]

    def get(self, namespace: str | None, name: str) -> T | None:
        """Return the object of this name; None if there is none."""
        return self._indexer.get(ObjectKey(namespace or "", name))

    def items(self) -> Iterable[T]:
        """Return all objects, as of now."""
        return self._indexer.items()

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects with this index value, in order of namespace and name."""
        return self._indexer.by_index(index, value)

    def __len__(self) -> int:
        return len(self._indexer)

    def __bool__(self) -> bool:
        """Always true: otherwise an empty informer would be false, as it has a length."""
        return True

    def add_listener(self, listener: Listener[T]) -> None:
        """Call ``listener(old, new)`` on each change, and immediately for each existing object."""
        self._indexer.add_listener(listener)

    def add_index(self, name: str, index: IndexFunction[T]) -> None:
        """Add an index function; not after ``run``."""
        self._indexer.add_index(name, index)

    def on_malformed(self, callback: Callable[[MalformedObject], None]) -> None:
        """Call ``callback`` for each object that does not fit the type (and is not in the copy)."""
        self._malformed_callback = callback

    def _report_malformed(self, malformed: MalformedObject) -> None:
        if self._malformed_callback is not None:
            self._malformed_callback(malformed)

    async def _resync(self, period_s: float) -> None:
        await self.wait_for_sync()
        while True:
            await asyncio.sleep(period_s)
            self._indexer.resync()


def _scopes(namespace: str | Sequence[str] | None) -> Sequence[str | None]:
    if isinstance(namespace, str):
        return (namespace or None,)
    return tuple(dict.fromkeys(namespace or ())) or (None,)
