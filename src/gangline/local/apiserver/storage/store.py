"""The object store: committed state in memory, history for watches, and staged writes.

A write is first *staged*: later writes are based on it, readers do not see it. Staged writes are
committed to the database in batches (group commit). After the commit they become visible to readers
and watchers, and their clients get their responses.

With durability ``disk`` a thread syncs the committed batch to disk before it becomes visible. The
event loop continues meanwhile; the writes that it stages are the next batch, which shares one sync.
Several syncs may run at once, so that a write does not wait for the one that began before it;
batches become visible in the order of their commits.

Invariant: a reader never sees a state that a crash could revert. If a batch cannot be written, all
of its writes and all writes staged meanwhile fail, and the visible state does not change. After a
failed sync, the state on disk is unknown, so that every later write fails until a restart.

All methods run on the event loop's thread. Of Kubernetes, the store knows only
``metadata.resourceVersion``.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gangline.local.apiserver.core.errors import internal, not_found
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.storage.sqlite import (
    CONCURRENT_SYNCS,
    DatabaseError,
    LogRow,
    StateDatabase,
)
from gangline.local.apiserver.storage.watch_cache import (
    ADDED,
    DELETED,
    MODIFIED,
    CacheEvent,
    ObjectRevision,
    WatchCache,
    history_limit,
    make_revision,
)

Json = dict[str, Any]
IndexFunction = Callable[[str, bytes], tuple[dict[str, str], dict[str, str]]]

MAX_DROPPED_ROWS = 500
"""Obsolete rows that one commit deletes, in some milliseconds of the event loop."""

_encode = msgspec.json.Encoder().encode


class _StagedWrite(NamedTuple):
    cache: WatchCache
    event: CacheEvent
    done: "asyncio.Future[ObjectRevision]"


class ObjectStore:
    """The state of the cluster."""

    def __init__(self, database: StateDatabase, *, history_bytes: int = 32 << 20) -> None:
        self._database = database
        self._history_bytes = history_bytes
        self._added = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._loop = asyncio.get_running_loop()
        self._assigned = self.revision = self._horizon = database.horizon()
        self._staged: list[_StagedWrite] = []
        self._obsolete_rows: list[int] = []
        """Revisions to delete, an object's oldest first: its deletion is the last to be forgotten.
        """
        self._dropping = False
        """True while obsolete rows are deleted; False after an error, until the next compaction."""
        self._committing: asyncio.Task[None] | None = None
        self._sync_threads = ThreadPoolExecutor(CONCURRENT_SYNCS, thread_name_prefix="sync")
        self._syncing: deque[tuple[list[_StagedWrite], asyncio.Future[None]]] = deque()
        """Committed batches, oldest first, and the syncs that they wait for."""
        self._write_staged: asyncio.Future[None] | None = None
        self._disk_error: DatabaseError | None = None
        self._shrinking = False
        """True while the file may have more free pages than it needs."""
        self._closing = False
        self._caches: dict[str, WatchCache] = {}
        self._listeners: dict[str, list[Callable[[CacheEvent], None]]] = {}
        self._observers: list[Callable[[str, CacheEvent], None]] = []

    def load(self, index: IndexFunction) -> None:
        """Read all rows; Secrets are first encrypted with the present key, if they are not.

        ``index`` returns labels and selectable fields of an object.

        Raises:
            DatabaseError: the file is damaged.
            EncryptionKeyError: the key of an object is missing or is another one.
        """
        self._database.encrypt_stored()
        for row in self._database.rows():
            cache = self.cache(row.topic)
            before = cache.records.get(row.key)
            try:
                indexed = index(row.topic, row.body)
                record = make_revision(row.key, row.rv, row.body, indexed, before)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._database.damaged(f"revision {row.rv}: {error}") from error
            cache.publish(CacheEvent(row.type, record, before))
            # The newest row may be older than the horizon: a trimmed deletion leaves no row.
            self._assigned = self.revision = max(self.revision, row.rv)

    def cache(self, name: str) -> WatchCache:
        """Return the cache of this name, created on first use."""
        cache = self._caches.get(name)
        if cache is None:
            cache = self._caches[name] = WatchCache(name, self._horizon)
        return cache

    def latest(self, name: str, key: str) -> Json | None:
        """Return the newest state of an object, committed or not; None if it does not exist."""
        record = self.cache(name).latest(key)
        return read_json(record.body) if record is not None else None

    def committed(self, name: str, key: str) -> Json | None:
        """Return the state of an object that readers see; None if it does not exist."""
        record = self.cache(name).records.get(key)
        return read_json(record.body) if record is not None else None

    def named(self, plural: str, namespace: str, name: str) -> Json:
        """Return an object of the core group; ``namespace`` is empty for one without. Raises
        StatusError: 404, it does not exist.
        """
        obj = self.committed(f"{plural}.", f"{namespace}/{name}" if namespace else name)
        if obj is None:
            raise not_found(plural, "", name)
        return obj

    def add_listener(self, name: str, listener: Callable[[CacheEvent], None]) -> None:
        """Call ``listener`` with each committed change of a kind, before its client gets a
        response.
        """
        self._listeners.setdefault(name, []).append(listener)

    def add_observer(self, observer: Callable[[str, CacheEvent], None]) -> None:
        """Call ``observer`` with each committed change of any kind and the name of its cache."""
        self._observers.append(observer)

    def stage(
        self,
        cache: WatchCache,
        key: str,
        obj: Json,
        index: tuple[dict[str, str], dict[str, str]],
        *,
        removed: bool = False,
    ) -> "asyncio.Future[ObjectRevision]":
        """Stage ``obj`` as the new state of ``key``, or as its last one. Sets resourceVersion.

        ``index`` is the labels and the selectable fields of the object. Raises StatusError: 500,
        the disk has failed.
        """
        if self._disk_error is not None:
            raise internal(str(self._disk_error))
        self._assigned += 1
        obj["metadata"]["resourceVersion"] = str(self._assigned)
        before = cache.latest(key)
        record = make_revision(key, self._assigned, _encode(obj), index, before)
        type_ = DELETED if removed else MODIFIED if before else ADDED
        cache.staged[key] = None if removed else record
        done: asyncio.Future[ObjectRevision] = self._loop.create_future()
        cache.in_flight[key] = done
        self._staged.append(_StagedWrite(cache, CacheEvent(type_, record, before), done))
        if self._committing is None:
            self._committing = self._loop.create_task(self._commit_all())
        elif self._write_staged is not None and not self._write_staged.done():
            self._write_staged.set_result(None)
        return done

    def pending_write(self, cache: WatchCache, key: str) -> "asyncio.Future[ObjectRevision] | None":
        """Return the pending commit of ``key``, or None. Await it before showing the object to a
        client.
        """
        for write in reversed(self._staged):
            if write.cache is cache and write.event.record.key == key:
                return write.done
        return cache.in_flight.get(key)

    async def _commit_all(self) -> None:
        """Commit batches until no write is staged and all are published, and the file is small.

        One task runs this; ``stage`` starts it. Each turn does the first of these that applies:

        1. Commit all staged writes as one batch, if a sync thread is free for it. Writes that are
           staged while all syncs are busy wait, and form the next batch: the slower the disk, the
           larger the batches.
        2. Wait for the oldest sync, or for a write with which step 1 can begin the next one; then
           publish the batches that are on disk. Between commit and publication, a crash of the
           machine may lose a batch: no reader has seen it, and no client has a response.
        3. Nothing is staged or syncing: make the file smaller by one step of some milliseconds.

        Afterwards, if the write-ahead log is large: publish all batches, then checkpoint, during
        which nothing can be committed or published.
        """
        while self._staged or self._dropping or self._syncing or self._shrinking:
            if (self._staged or self._dropping) and len(self._syncing) < CONCURRENT_SYNCS:
                await self._commit_batch()
            elif self._syncing:
                await self._wait_for_sync_or_write()
                self._publish_synced()
            else:
                await self._shrink()
            if self._database.checkpoint_due:
                await self._drain()
                await self._checkpoint()
        self._committing = None

    async def _commit_batch(self) -> None:
        # No await between taking the batch and its commit: the batches are in the log in the order
        # in which their revisions were assigned.
        batch, self._staged = self._staged, []
        dropped = self._obsolete_rows[:MAX_DROPPED_ROWS] if self._dropping else []
        rows = [
            LogRow(event.record.rv, cache.name, event.record.key, event.type, event.record.body)
            for cache, event, _ in batch
        ]
        try:
            if self._disk_error is not None:
                raise self._disk_error
            # On this thread: a worker thread would wait for the interpreter lock under load.
            self._database.commit(rows, dropped, self._horizon)
        except DatabaseError as error:
            self._dropping = False
            await self._drain()  # those batches are committed, and must not fail with this one
            self._fail(batch, error)
            return
        del self._obsolete_rows[: len(dropped)]
        self._dropping = self._dropping and bool(self._obsolete_rows)
        if rows and self._database.syncs_to_disk:
            sync = self._loop.run_in_executor(self._sync_threads, self._database.sync)
            self._syncing.append((batch, sync))
        else:
            self._publish(batch)

    async def _wait_for_sync_or_write(self) -> None:
        """Wait for the oldest sync, or for a write that another sync can begin with."""
        waited: set[asyncio.Future[None]] = {self._syncing[0][1]}
        if len(self._syncing) < CONCURRENT_SYNCS:
            self._write_staged = self._loop.create_future()
            waited.add(self._write_staged)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        self._write_staged = None

    def _publish_synced(self) -> None:
        """Publish finished batches in the order of their commits.

        A later batch may be on disk first. It waits, because its writes may be based on those of an
        earlier one. For the same reason all later batches fail with one whose sync failed.
        """
        while self._syncing and self._syncing[0][1].done():
            batch, sync = self._syncing.popleft()
            error = sync.exception()
            if error is None:
                self._publish(batch)
                continue
            failure = error if isinstance(error, DatabaseError) else DatabaseError(repr(error))
            self._disk_error = failure
            later = [write for batch, _ in self._syncing for write in batch]
            for _, other in self._syncing:
                other.add_done_callback(asyncio.Future.exception)  # mark as retrieved
            self._syncing.clear()
            self._fail([*batch, *later], failure)

    async def _drain(self) -> None:
        """Wait for all syncs, and publish their batches."""
        while self._syncing:
            await asyncio.wait({self._syncing[0][1]})
            self._publish_synced()

    async def _checkpoint(self) -> None:
        try:
            await self._loop.run_in_executor(self._thread, self._database.checkpoint)
        except DatabaseError as error:
            self._disk_error = error  # reported to the next write

    async def _shrink(self) -> None:
        try:
            more = await self._loop.run_in_executor(self._thread, self._database.shrink)
        except DatabaseError as error:
            self._disk_error, more = error, False  # reported to the next write
        self._shrinking = self._shrinking and more

    def _publish(self, batch: list[_StagedWrite]) -> None:
        for cache, event, done in batch:
            key = event.record.key
            cache.publish(event)
            # Unless a newer write of the object is staged: later writes are based on that one.
            if cache.in_flight.get(key) is done:
                del cache.in_flight[key]
                del cache.staged[key]
            for listener in self._listeners.get(cache.name, ()):
                listener(event)
            for observer in self._observers:
                observer(cache.name, event)
            if not done.done():
                done.set_result(event.record)
            self._added += event.size
        if batch:
            self.revision = batch[-1].event.record.rv
        if self._added > self._history_bytes // 4:
            # Memory limit: frequent writes must not wait for the next compaction by age.
            self.compact(older_than=float("-inf"))

    def _fail(self, batch: list[_StagedWrite], error: DatabaseError) -> None:
        # Writes staged meanwhile may be based on the failed ones, so they fail too. Afterwards
        # nothing is staged: the next write is based on what readers see. Revisions of failed writes
        # are not assigned again.
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
        caches = list(self._caches.values())
        limit = history_limit([cache.history_bytes for cache in caches], self._history_bytes)
        for cache in caches:
            self._obsolete_rows += cache.trim(older_than, cache.history_bytes - limit)
            self._horizon = max(self._horizon, cache.horizon)
        self._dropping, self._shrinking = bool(self._obsolete_rows), not self._closing
        if self._committing is None and not self._closing:
            self._committing = self._loop.create_task(self._commit_all())

    async def write_snapshot(self, path: Path) -> int:
        """Write all objects, as they are at one revision, to a new state file; return the revision.

        Writes continue meanwhile: only the list of objects is taken on this thread. Raises
        DatabaseError: the file could not be written.
        """
        revision = self.revision
        rows = [
            LogRow(record.rv, cache.name, record.key, ADDED, record.body)
            for cache in self._caches.values()
            for record in cache.records.values()
        ]
        # Not on the store's own thread, which the next commit waits for.
        await asyncio.to_thread(self._database.write_snapshot, path, rows, revision)
        return revision

    async def close(self) -> None:
        """Commit staged writes and close the file."""
        self._closing, self._shrinking = True, False
        if self._committing is not None:
            await self._committing
        # Syncs that were given up after an error may still run.
        await self._loop.run_in_executor(self._thread, self._sync_threads.shutdown)
        await self._loop.run_in_executor(self._thread, self._database.close)
        self._thread.shutdown()
