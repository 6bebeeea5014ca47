"""The object store: committed state in memory, history for watches, and staged writes.

A write is first *staged*: later writes are based on it, readers do not see it. Staged writes are
committed to the database in batches (group commit). After the commit they become visible to readers
and watchers, and their clients get their responses.

Invariant: a reader never sees a state that a crash could revert. If a batch cannot be written, all
of its writes and all writes staged meanwhile fail, and the visible state does not change.

All methods run on the event loop's thread. Of Kubernetes, the store knows only
``metadata.resourceVersion``.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec

from gangline.local.apiserver.database import Database, DatabaseError, Row
from gangline.local.apiserver.errors import internal
from gangline.local.apiserver.history import ADDED, DELETED, MODIFIED, Event, Record, Topic

Json = dict[str, Any]
Index = Callable[[str, bytes], tuple[dict[str, str], dict[str, str]]]

_encode = msgspec.json.Encoder().encode


class _Write(NamedTuple):
    cache: Topic
    event: Event
    done: "asyncio.Future[Record]"


class Store:
    """The state of the cluster."""

    def __init__(self, database: Database, *, history_bytes: int = 32 << 20) -> None:
        self._database = database
        self._history_bytes = history_bytes
        self._added = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._loop = asyncio.get_running_loop()
        self._assigned = self.revision = self._horizon = database.horizon()
        self._staged: list[_Write] = []
        self._dropped: list[int] = []
        self._committing: asyncio.Task[None] | None = None
        self._topics: dict[str, Topic] = {}
        self._listeners: dict[str, list[Callable[[Event], None]]] = {}

    def load(self, index: Index) -> None:
        """Read all rows from the database. ``index`` returns labels and selectable fields.

        Raises:
            DatabaseError: the file is damaged.
        """
        for row in self._database.rows():
            cache = self.topic(row.topic)
            labels, fields = index(row.topic, row.body)
            record = Record(row.key, row.rv, row.body, labels, fields)
            cache.publish(Event(row.type, record, cache.records.get(row.key)))
            # The newest row may be older than the horizon: a trimmed deletion leaves no row.
            self._assigned = self.revision = max(self.revision, row.rv)

    def topic(self, name: str) -> Topic:
        """Return the cache of this name, created on first use."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = Topic(name, self._horizon)
        return found

    def on_change(self, name: str, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` with each committed change of a kind, before its client gets a
        response.
        """
        self._listeners.setdefault(name, []).append(listener)

    def put(
        self,
        cache: Topic,
        key: str,
        obj: Json,
        labels: dict[str, str],
        fields: dict[str, str],
    ) -> "asyncio.Future[Record]":
        """Stage ``obj`` as the new state of ``key``. Sets its resourceVersion."""
        before = cache.latest(key)
        return self._stage(cache, MODIFIED if before else ADDED, key, obj, labels, fields)

    def remove(
        self,
        cache: Topic,
        key: str,
        obj: Json,
        labels: dict[str, str],
        fields: dict[str, str],
    ) -> "asyncio.Future[Record]":
        """Stage the removal of ``key``, whose last state is ``obj``."""
        return self._stage(cache, DELETED, key, obj, labels, fields)

    def settled(self, cache: Topic, key: str) -> "asyncio.Future[Record] | None":
        """Return the pending commit of ``key``, or None. Await it before showing the object to a
        client.
        """
        for write in reversed(self._staged):
            if write.cache is cache and write.event.record.key == key:
                return write.done
        return cache.in_flight.get(key)

    def _stage(
        self,
        cache: Topic,
        type_: str,
        key: str,
        obj: Json,
        labels: dict[str, str],
        fields: dict[str, str],
    ) -> "asyncio.Future[Record]":
        self._assigned += 1
        obj["metadata"]["resourceVersion"] = str(self._assigned)
        record = Record(key, self._assigned, _encode(obj), labels, fields)
        event = Event(type_, record, cache.latest(key))
        cache.staged[key] = None if type_ == DELETED else record
        done: asyncio.Future[Record] = self._loop.create_future()
        cache.in_flight[key] = done
        self._staged.append(_Write(cache, event, done))
        if self._committing is None:
            self._committing = self._loop.create_task(self._commit_all())
        return done

    async def _commit_all(self) -> None:
        """Commit batches until no write is staged. Writes staged during a commit form the next
        batch.
        """
        while self._staged or self._dropped:
            batch, self._staged = self._staged, []
            dropped, self._dropped = self._dropped, []
            rows = [
                Row(
                    w.event.record.rv,
                    w.cache.name,
                    w.event.record.key,
                    w.event.type,
                    w.event.record.body,
                )
                for w in batch
            ]
            try:
                await self._commit(rows, dropped)
            except DatabaseError as error:
                self._fail(batch, error)
            else:
                self._publish(batch)
            if self._database.checkpoint_due:
                await self._loop.run_in_executor(self._thread, self._database.checkpoint)
        self._committing = None

    async def _commit(self, rows: list[Row], dropped: list[int]) -> None:
        if self._database.waits_for_disk:
            await self._loop.run_in_executor(
                self._thread, self._database.commit, rows, dropped, self._horizon
            )
        else:
            # Faster than a thread, which waits for the interpreter lock under load.
            self._database.commit(rows, dropped, self._horizon)

    def _publish(self, batch: list[_Write]) -> None:
        for cache, event, done in batch:
            key = event.record.key
            cache.publish(event)
            if cache.in_flight.get(key) is done:
                del cache.in_flight[key]
                del cache.staged[key]
            for listener in self._listeners.get(cache.name, ()):
                listener(event)
            if not done.done():
                done.set_result(event.record)
            self._added += len(event.record.body)
        if batch:
            self.revision = batch[-1].event.record.rv
        if self._added > self._history_bytes // 4:
            # Memory limit: frequent writes must not wait for the next compaction by age.
            self.compact(older_than=float("-inf"))

    def _fail(self, batch: list[_Write], error: DatabaseError) -> None:
        # Writes staged meanwhile may be based on the failed ones, so they fail too.
        failed, self._staged = [*batch, *self._staged], []
        for cache, _event, done in failed:
            cache.staged.clear()
            cache.in_flight.clear()
            if not done.done():
                done.set_exception(internal(str(error)))
                done.exception()  # mark as retrieved: the client may have disconnected

    def compact(self, older_than: float) -> None:
        """Drop history before ``older_than`` (monotonic seconds) or above the size limit."""
        self._added = 0
        caches = list(self._topics.values())
        held = sum(cache.history_bytes for cache in caches)
        for cache in sorted(caches, key=lambda cache: -cache.history_bytes):
            surplus = max(0, held - self._history_bytes)
            held -= cache.history_bytes
            self._dropped += cache.trim(older_than, surplus)
            held += cache.history_bytes
            self._horizon = max(self._horizon, cache.horizon)
        if self._dropped and self._committing is None:
            self._committing = self._loop.create_task(self._commit_all())

    async def close(self) -> None:
        """Commit staged writes and close the file."""
        if self._committing is not None:
            await self._committing
        await self._loop.run_in_executor(self._thread, self._database.close)
        self._thread.shutdown()
