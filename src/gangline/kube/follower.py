"""Keeps a store current by list and watch: the objects of one namespace, or of all.

All objects are listed in pages, then watched from the list's revision on. A watch that ends is
resumed where it stopped; when the server no longer holds that revision (410), everything is listed
again and compared. While the server is away the store stays as it was, and attempts to come back
are spread out, each waiting longer than the last.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from gangline.api.meta import Object
from gangline.api.resource import Resource
from gangline.kube import metrics
from gangline.kube.client import Client, Malformed, WatchEvent
from gangline.kube.errors import ApiError, ConfigError, Gone
from gangline.kube.store import Key, Store, key_of

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

BACKOFF_S = (0.5, 30.0)
"""The first and the longest wait before the server is tried again."""
SHORT_WATCH_S = 1.0
"""A watch that ends sooner than this without an event counts as a failure: see ``_watch``."""


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Which objects are followed, and what is kept of them."""

    resource: Resource[T]
    labels: str = ""
    fields: str = ""
    transform: Callable[[T], T] | None = None
    page_size: int = 500

    def kept(self, item: T) -> T:
        """Return what is kept of an object."""
        return self.transform(item) if self.transform else item


class Follower(Generic[T]):
    """Follows one namespace, or all. ``run`` it in a task."""

    def __init__(
        self,
        client: Client,
        selection: Selection[T],
        namespace: str | None,
        store: Store[T],
        refused: Callable[[Malformed], None],
    ) -> None:
        self._client = client
        self._selection = selection
        self._namespace = namespace
        self._store = store
        self._refused = refused
        self._moved_on = False
        self._failures = 0
        self.synced = asyncio.Event()
        """Set once everything there was has been read."""
        self.resource_version = ""
        """The revision that the store is at; empty when all has to be listed."""
        self.problem: ApiError | ConfigError | None = None
        """Why the store is not current; None while it is."""

    async def run(self) -> None:
        """Keep the store current until cancelled."""
        while True:
            try:
                if not self.resource_version:
                    await self._list()
                await self._watch()
                self._count_restart("ended")
            except Gone as error:
                self._count_restart("expired")
                log.info("list again: revision expired", extra=self._fields_for_log())
                self.resource_version = ""
                if not self._moved_on:
                    # Expired as soon as listed: listing at full speed would not help.
                    await self._back_off(error)
            except (ApiError, ConfigError) as error:
                self._count_restart("failed")
                await self._back_off(error)

    async def _list(self) -> None:
        selection = self._selection
        listing = await self._client.list(
            selection.resource,
            self._namespace,
            labels=selection.labels,
            fields=selection.fields,
            limit=selection.page_size,
        )
        for malformed in listing.malformed:
            self._refuse(malformed)
        items = [selection.kept(item) for item in listing.items]
        self._store.replace(items, self._namespace)
        self.resource_version = listing.resource_version
        self._current()
        self._moved_on = False
        self.synced.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        began, events = loop.time(), 0
        watch = self._client.watch(
            self._selection.resource,
            self._namespace,
            labels=self._selection.labels,
            fields=self._selection.fields,
            resource_version=self.resource_version,
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
            self.resource_version = event.resource_version
        match event.type:
            case "ADDED" | "MODIFIED":
                self._store.put(self._selection.kept(event.object))
            case "DELETED":
                self._store.remove(key_of(event.object))
            case "MALFORMED" if event.malformed is not None:
                self._refuse(event.malformed)

    def _refuse(self, malformed: Malformed) -> None:
        metadata = malformed.metadata
        self._store.remove(Key(metadata.namespace, metadata.name))
        fields = {**self._fields_for_log(), "object": f"{metadata.namespace}/{metadata.name}"}
        log.warning("object does not fit its type", extra={**fields, "error": malformed.error})
        self._refused(malformed)

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

    def _count_restart(self, cause: str) -> None:
        metrics.WATCH_RESTARTS.labels(self._selection.resource.kind, cause).inc()

    def _fields_for_log(self) -> dict[str, str]:
        return {
            "kind": self._selection.resource.kind,
            "watched_namespace": self._namespace or "all",
        }
