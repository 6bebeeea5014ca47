"""Informer: a local copy of all objects of a kind, kept current by list and watch.

The copy is of one namespace, of several (each watched separately, so that rights in these suffice),
or of all. Listeners are called once per change, in order, with ``(old, new)``: None is old for a
new object, and new for a deleted one. They run in the watch loop, so they must only enqueue keys.

A ``Reflector`` keeps the copy of one namespace, or of all, current:

1. List all objects, in protobuf if the server has it (``client.collection``).
2. Watch from the revision of the list on.
3. When the watch ends, resume it at the last revision. If the server no longer has that revision
   (410), list again and apply the difference.

While the server is unreachable the copy stays as it is; reconnects are delayed exponentially, with
jitter. With ``from_cache`` the first list may be any state that the server has in its watch cache
(``resourceVersion=0``), as in client-go. Such a list takes the server a fraction of the time, and
may lack the changes of the last moments; the watch, which begins at the revision of the list,
delivers them. To the listeners that is the same as a start some moments earlier. A later list is
always a read of the newest state: with several servers, the cache of another one may be behind the
store, and the store must never go back in time.

``SharedInformers`` gives all controllers of a process one copy and one watch per kind.
"""

import asyncio
import gc
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gangline.api.meta.objects import Object
from gangline.api.meta.resource import Resource
from gangline.kube import metrics
from gangline.kube.client.client import ApiClient, MalformedObject, WatchEvent
from gangline.kube.client.collection import Collection, Selection
from gangline.kube.errors import ApiError, ConfigError, Gone, NotFound
from gangline.kube.informers.indexer import Indexer, IndexFunction, Listener, ObjectKey, object_key

__all__ = ["Informer", "ObjectKey", "object_key"]

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

BACKOFF_S = (0.5, 30.0)
"""The first and the longest delay before a reconnect."""
SHORT_WATCH_S = 1.0
"""A watch that ends sooner than this without an event counts as a failure: see ``_watch``."""


@dataclass(frozen=True, slots=True)
class ListTimes:
    """Durations of the parts of one list."""

    objects: int
    is_protobuf: bool
    list_s: float
    """From the request to the last byte, without decoding: mostly the server's work."""
    decode_s: float
    cache_s: float
    """Storing the objects, with the work of all listeners."""


class Reflector(Generic[T]):
    """Watches one namespace, or all. Start ``run`` in a task."""

    def __init__(
        self,
        client: ApiClient,
        selection: Selection[T],
        namespace: str | None,
        indexer: Indexer[T],
        on_malformed: Callable[[MalformedObject], None],
        *,
        from_cache: bool = False,
    ) -> None:
        self._collection = Collection(client, selection, namespace)
        self._resource = selection.resource
        self._transform = selection.transform
        self._from_cache = from_cache
        self._namespace = namespace
        self._indexer = indexer
        self._on_malformed = on_malformed
        self._has_progressed = False
        self._failures = 0
        self._age = metrics.CacheAge(selection.resource.kind)
        self.has_synced = asyncio.Event()
        """Set after the first complete list."""
        self.resource_version = ""
        """The revision of the store; empty if a list is necessary."""
        self.list_times: ListTimes | None = None
        """Durations of the last list."""
        self.answered = asyncio.Event()
        """Set when the first list is complete, or the server answers that it has no such kind."""
        self.problem: ApiError | ConfigError | None = None
        """The last error, while the store is not current; else None."""

    async def run(self) -> None:
        """Keep the store current until cancelled."""
        metrics.CACHE_AGES.add(self._age)
        try:
            await self._run()
        finally:
            metrics.CACHE_AGES.remove(self._age)

    async def _run(self) -> None:
        while True:
            try:
                if not self.resource_version:
                    await self._list()
                await self._watch()
                self._count_restart("ended")
            except Gone as error:
                self._count_restart("expired")
                log.info("revision expired: listing again", extra=self._fields_for_log())
                self.resource_version = ""
                if not self._has_progressed:
                    # Expired immediately after the list: listing again at once would not help.
                    await self._back_off(error)
            except (ApiError, ConfigError) as error:
                self._count_restart("failed")
                await self._back_off(error)

    async def _list(self) -> None:
        began = time.perf_counter()
        is_first = not self.has_synced.is_set()
        listing = await self._collection.list(from_cache=self._from_cache and is_first)
        listed = time.perf_counter()
        for malformed in listing.malformed:
            self._report_malformed(malformed)
        await self._indexer.replace(listing.items, self._namespace)
        self.list_times = ListTimes(
            len(listing),
            listing.is_protobuf,
            listed - began - listing.decode_s,
            listing.decode_s,
            time.perf_counter() - listed,
        )
        self.resource_version = listing.resource_version
        self._age.refresh()
        self._clear_problem()
        self._has_progressed = False
        self.has_synced.set()
        self.answered.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        began, events = loop.time(), 0
        watch = self._collection.watch(self.resource_version)
        async with aclosing(watch) as stream:
            async for event in stream:
                events += 1
                self._age.refresh()
                self._handle(event)
                self._clear_problem()
                self._failures = 0
        if not events and loop.time() - began < SHORT_WATCH_S:
            # If a server ends watches immediately, reconnecting immediately would only load it.
            return await self._back_off(None)
        self._age.refresh()
        self._clear_problem()
        self._failures = 0

    def _handle(self, event: WatchEvent[T]) -> None:
        self._has_progressed = True
        if event.resource_version:
            self.resource_version = event.resource_version
        match event.type:
            case "ADDED" | "MODIFIED":
                item = event.object
                self._indexer.put(self._transform(item) if self._transform else item)
            case "DELETED":
                self._indexer.remove(object_key(event.object))
            case "MALFORMED" if event.malformed is not None:
                self._report_malformed(event.malformed)

    def _report_malformed(self, malformed: MalformedObject) -> None:
        metadata = malformed.metadata
        self._indexer.remove(ObjectKey(metadata.namespace, metadata.name))
        fields = {**self._fields_for_log(), "object": f"{metadata.namespace}/{metadata.name}"}
        log.warning("object does not fit its type", extra={**fields, "error": malformed.error})
        self._on_malformed(malformed)

    def _clear_problem(self) -> None:
        if self.problem is not None:
            log.info("watch recovered", extra=self._fields_for_log())
        self.problem = None

    async def _back_off(self, error: ApiError | ConfigError | None) -> None:
        """Sleep, with exponential backoff and jitter."""
        self._failures += 1
        first, longest = BACKOFF_S
        wait = min(longest, first * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
        if error is not None:
            self.problem = error
            if isinstance(error, NotFound):
                self.answered.set()
            level = logging.WARNING if self._failures == 3 else logging.DEBUG
            log.log(level, "list or watch failed: %s", error, extra=self._fields_for_log())
            wait = max(wait, getattr(error, "retry_after_s", None) or 0.0)
        await asyncio.sleep(wait)

    def _count_restart(self, cause: str) -> None:
        metrics.WATCH_RESTARTS.labels(self._resource.kind, cause).inc()

    def _fields_for_log(self) -> dict[str, str]:
        return {
            "kind": self._resource.kind,
            "watched_namespace": self._namespace or "all",
        }


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
                lack the last changes: see above. Not if a missing object would be taken for one
                that does not exist.
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

    async def fill(self, items: list[T]) -> None:
        """Store objects that the caller has read, in place of ``run``."""
        await self._indexer.replace(items)

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
        return next((follower.problem for follower in self._reflectors if follower.problem), None)

    @property
    def resource_version(self) -> str:
        """The revision of the copy; of several namespaces, the first one's."""
        return self._reflectors[0].resource_version

    @property
    def list_times(self) -> Sequence[ListTimes]:
        """Durations of the last list of each namespace that has been listed."""
        times = [follower.list_times for follower in self._reflectors]
        return [times_ for times_ in times if times_ is not None]

    def get(self, namespace: str | None, name: str) -> T | None:
        """Return the object of this name; None if there is none."""
        return self._indexer.get(ObjectKey(namespace or "", name))

    def items(self) -> Iterable[T]:
        """Return all objects, as of now."""
        return self._indexer.items()

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects with this index value, in order of namespace and name."""
        return self._indexer.by_index(index, value)

    def index_values(self, index: str) -> Set[str]:
        """Return the values that an index has for at least one object."""
        return self._indexer.index_values(index)

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


_Scope = tuple[str, str, str | None, str, str, object]


class SharedInformerFactory:
    """Creates one informer per resource, type and selector, and runs all of them."""

    def __init__(self, client: ApiClient, *, resync_s: float | None = None) -> None:
        self._client = client
        self._resync_s = resync_s
        self._informers: dict[_Scope, Informer[Any]] = {}
        self._running = False

    def informer(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        transform: Callable[[T], T] | None = None,
    ) -> Informer[T]:
        """Return the informer of a resource. Call it before ``run``. Indexes of all callers are
        merged.

        Raises:
            RuntimeError: the informers run already, or two callers give different transforms.
        """
        if self._running:
            raise RuntimeError(
                f"the informer of {resource.kind} must be requested before the informers run"
            )
        kind: object = resource.type
        scope = (resource.api_version, resource.plural, namespace, labels, fields, kind)
        informer: Informer[T] | None = self._informers.get(scope)
        if informer is None:
            informer = self._informers[scope] = Informer(
                self._client,
                resource,
                namespace,
                labels=labels,
                fields=fields,
                indexes=indexes,
                transform=transform,
                resync_s=self._resync_s,
            )
            return informer
        if transform is not None and transform is not informer.transform:
            raise RuntimeError(f"there are two transforms for the informer of {resource.kind}")
        for name, index in (indexes or {}).items():
            informer.add_index(name, index)
        return informer

    async def run(self) -> None:
        """Run all informers until cancelled."""
        self._running = True
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    async def wait_for_sync(self) -> None:
        """Wait until the first list of every informer is complete."""
        for informer in self._informers.values():
            await informer.wait_for_sync()
        # The copies are large and long-lived: exclude them from garbage collection.
        gc.freeze()
