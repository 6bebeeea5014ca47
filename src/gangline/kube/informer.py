"""A local copy of all objects of a kind, kept current by list and watch.

The model: list all objects in pages, then watch from the list's revision on. A watch that ends is
resumed where it stopped; when the server no longer holds that revision (410), everything is listed
again and compared, and listeners are told the differences only. While the server is away the copy
stays as it was, and attempts to come back are spread out, each waiting longer than the last.

Listeners hear of every change once, in order, as ``(old, new)``; ``old`` is None for a new object,
``new`` is None for one that is gone. They run inside the watch loop: they note keys, no more.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

from gangline.api.meta import Object
from gangline.api.resource import Resource
from gangline.kube.client import Client, Malformed, WatchEvent
from gangline.kube.errors import ApiError, ConfigError, Gone
from gangline.kube.store import Index, Key, Listener, Store, key_of

__all__ = ["Informer", "Key", "key_of"]

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

BACKOFF_S = (0.5, 30.0)
"""The first and the longest wait before the server is tried again."""
SHORT_WATCH_S = 1.0
"""A watch that ends sooner than this without an event counts as a failure: see ``_watch``."""


class Informer(Generic[T]):
    """Keeps a local copy of objects. ``run`` it in a task; wait for ``synced`` before reading."""

    def __init__(  # noqa: PLR0913 - what to follow, and how to keep it
        self,
        client: Client,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, Index[T]] | None = None,
        transform: Callable[[T], T] | None = None,
        resync_s: float | None = None,
        page_size: int = 500,
    ) -> None:
        self.resource = resource
        self._client = client
        self._namespace = namespace
        self._labels, self._fields = labels, fields
        self.transform = transform
        self._resync_s = resync_s
        self._page_size = page_size
        self._store: Store[T] = Store(indexes or {})
        self._synced = asyncio.Event()
        self._on_malformed: Callable[[Malformed], None] | None = None
        self._resource_version = ""
        self._moved_on = False
        self._failures = 0
        self.problem: ApiError | ConfigError | None = None
        """Why the copy is not current; None while it is."""

    async def run(self) -> None:
        """Keep the copy current until cancelled."""
        if self._resync_s is None:
            return await self._follow()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._resync(self._resync_s))

    async def synced(self) -> None:
        """Wait until everything there was has been read once."""
        await self._synced.wait()

    @property
    def has_synced(self) -> bool:
        """Whether everything there was has been read once."""
        return self._synced.is_set()

    @property
    def resource_version(self) -> str:
        """The revision that the copy is at."""
        return self._resource_version

    def get(self, namespace: str | None, name: str) -> T | None:
        """The object of this name, if there is one."""
        return self._store.get(Key(namespace or "", name))

    def items(self) -> Iterable[T]:
        """All objects, as they are now."""
        return self._store.items()

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects that an index files under ``value``, in order of namespace and name."""
        return self._store.by_index(index, value)

    def __len__(self) -> int:
        return len(self._store)

    def add_listener(self, listener: Listener[T]) -> None:
        """Call ``listener(old, new)`` on each change, and now for each object there is."""
        self._store.add_listener(listener)

    def add_index(self, name: str, index: Index[T]) -> None:
        """File objects under the values that ``index`` gives for each; not after ``run``."""
        self._store.add_index(name, index)

    def on_malformed(self, callback: Callable[[Malformed], None]) -> None:
        """Call ``callback`` for each object that does not fit the type (and is not in the copy)."""
        self._on_malformed = callback

    async def _follow(self) -> None:
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                await self._watch()
            except Gone as error:
                log.info("list again: revision expired", extra=self._fields_for_log())
                self._resource_version = ""
                if not self._moved_on:
                    # Expired as soon as listed: listing at full speed would not help.
                    await self._back_off(error)
            except (ApiError, ConfigError) as error:
                await self._back_off(error)

    async def _list(self) -> None:
        listing = await self._client.list(
            self.resource,
            self._namespace,
            labels=self._labels,
            fields=self._fields,
            limit=self._page_size,
        )
        for malformed in listing.malformed:
            self._refuse(malformed)
        items = listing.items
        if self.transform is not None:
            items = [self.transform(item) for item in items]
        self._store.replace(items)
        self._resource_version = listing.resource_version
        self._current()
        self._moved_on = False
        self._synced.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        began, events = loop.time(), 0
        watch = self._client.watch(
            self.resource,
            self._namespace,
            labels=self._labels,
            fields=self._fields,
            resource_version=self._resource_version,
        )
        async with aclosing(watch) as stream:
            async for event in stream:
                events += 1
                self._take(event)
                self._current()
                self._failures = 0
        if not events and loop.time() - began < SHORT_WATCH_S:
            # A server that hangs up at once must not be asked again at once.
            return await self._back_off(None)
        self._current()
        self._failures = 0

    def _take(self, event: WatchEvent[T]) -> None:
        self._moved_on = True
        if event.resource_version:
            self._resource_version = event.resource_version
        match event.type:
            case "ADDED" | "MODIFIED":
                new = self.transform(event.object) if self.transform else event.object
                self._store.put(new)
            case "DELETED":
                self._store.remove(key_of(event.object))
            case "MALFORMED" if event.malformed is not None:
                self._refuse(event.malformed)

    def _refuse(self, malformed: Malformed) -> None:
        metadata = malformed.metadata
        self._store.remove(Key(metadata.namespace, metadata.name))
        fields = {**self._fields_for_log(), "object": f"{metadata.namespace}/{metadata.name}"}
        log.warning("object does not fit its type", extra={**fields, "error": malformed.error})
        if self._on_malformed is not None:
            self._on_malformed(malformed)

    def _current(self) -> None:
        if self.problem is not None:
            log.info("following again", extra=self._fields_for_log())
        self.problem = None

    async def _back_off(self, error: ApiError | ConfigError | None) -> None:
        """Wait: longer after each failure in a row, and never in step with others."""
        self._failures += 1
        first, longest = BACKOFF_S
        wait = min(longest, first * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
        if error is not None:
            self.problem = error
            level = logging.WARNING if self._failures == 3 else logging.DEBUG
            log.log(level, "following failed: %s", error, extra=self._fields_for_log())
            wait = max(wait, getattr(error, "retry_after_s", None) or 0.0)
        await asyncio.sleep(wait)

    async def _resync(self, period_s: float) -> None:
        await self.synced()
        while True:
            await asyncio.sleep(period_s)
            self._store.replay()

    def _fields_for_log(self) -> dict[str, str]:
        return {"kind": self.resource.kind, "watched_namespace": self._namespace or "all"}
