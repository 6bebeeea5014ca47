"""The store: writes become visible after the commit, in order, or not at all."""

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.apiserver.storage.sqlite import DatabaseError, StateDatabase
from gangline.local.apiserver.storage.store import ObjectStore
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


def obj(**data: Any) -> dict[str, Any]:
    return {"metadata": {"name": "it"}, **data}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened = ObjectStore(StateDatabase(tmp_path / "state.db"))
    yield opened
    await opened.close()


async def test_a_write_is_seen_by_writers_at_once_and_by_readers_when_it_is_committed(
    store: ObjectStore,
):
    cache = store.cache("things.")
    done = store.stage(cache, "a", obj(), ({}, {}))
    assert cache.latest("a") is not None
    assert "a" not in cache.records
    record = await done
    assert cache.records["a"] is record
    assert store.revision == record.rv == int(read_json(record.body)["metadata"]["resourceVersion"])


async def test_writes_keep_their_order_and_types(store: ObjectStore):
    cache = store.cache("things.")
    seen: list[tuple[str, int]] = []
    store.add_listener("things.", lambda event: seen.append((event.type, event.record.rv)))
    await asyncio.gather(
        store.stage(cache, "a", obj(), ({}, {})),
        store.stage(cache, "a", obj(n=1), ({}, {})),
        store.stage(cache, "a", obj(n=1), ({}, {}), removed=True),
        store.stage(cache, "a", obj(n=2), ({}, {})),
    )
    assert [type_ for type_, _ in seen] == [ADDED, MODIFIED, DELETED, ADDED]
    assert [rv for _, rv in seen] == sorted(rv for _, rv in seen)


async def test_everything_is_there_after_opening_again(tmp_path: Path):
    path = tmp_path / "state.db"
    first = ObjectStore(StateDatabase(path))
    cache = first.cache("things.")
    await first.stage(cache, "a", obj(n=1), ({}, {}))
    await first.stage(cache, "b", obj(), ({}, {}))
    last = await first.stage(cache, "b", obj(), ({}, {}), removed=True)
    await first.close()
    second = ObjectStore(StateDatabase(path))
    second.load(lambda cache, body: ({}, {}))
    again = second.cache("things.")
    assert list(again.records) == ["a"]
    assert read_json(again.records["a"].body)["n"] == 1
    assert second.revision == last.rv
    assert [event.type for event in again.events] == [ADDED, ADDED, DELETED]
    assert (await second.stage(again, "c", obj(), ({}, {}))).rv > last.rv
    await second.close()


async def test_dropped_history_does_not_come_back_and_objects_stay(tmp_path: Path):
    path = tmp_path / "state.db"
    first = ObjectStore(StateDatabase(path))
    cache = first.cache("things.")
    for number in range(5):
        await first.stage(cache, "a", obj(n=number), ({}, {}))
    await first.stage(cache, "b", obj(), ({}, {}), removed=True)
    horizon = first.revision
    first.compact(older_than=float("inf"))
    await first.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM log").fetchone() == (1,)
    second = ObjectStore(StateDatabase(path))
    second.load(lambda cache, body: ({}, {}))
    assert read_json(second.cache("things.").records["a"].body)["n"] == 4
    assert second.cache("things.").horizon == second.cache("others.").horizon == horizon
    assert (await second.stage(second.cache("things."), "c", obj(), ({}, {}))).rv > horizon
    await second.close()


async def test_full_disk_fails_writes_with_message_and_leaves_state_unchanged(
    tmp_path: Path,
):
    database = StateDatabase(tmp_path / "state.db")
    store = ObjectStore(database)
    cache = store.cache("things.")
    kept = await store.stage(cache, "a", obj(), ({}, {}))
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count={pages + 2}")
    large = store.stage(cache, "b", obj(filler="x" * 100_000), ({}, {}))
    behind = store.stage(cache, "a", obj(n=2), ({}, {}))
    outcomes = await asyncio.gather(large, behind, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, StatusError)
        assert "the disk of" in str(outcome)
        assert "is full" in str(outcome)
    assert cache.records == {"a": kept}
    assert cache.latest("b") is None
    database._connection.execute("PRAGMA max_page_count=100000")
    again = await store.stage(cache, "b", obj(filler="x" * 100_000), ({}, {}))
    assert again.rv > kept.rv
    await store.close()


async def test_disconnected_client_does_not_undo_its_write(store: ObjectStore):
    cache = store.cache("things.")
    done = store.stage(cache, "a", obj(), ({}, {}))
    done.cancel()
    await store.stage(cache, "b", obj(), ({}, {}))
    assert set(cache.records) == {"a", "b"}


changes = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40)


@given(changes, st.data())
def test_the_state_at_a_revision_is_what_it_was_then(steps: list[tuple[str, bool]], data: Any):
    cache = WatchCache("things.", 0)
    past: list[list[str]] = [[]]
    for rv, (key, removed) in enumerate(steps, start=1):
        before = cache.records.get(key)
        if removed and before is None:
            past.append(past[-1])
            continue
        type_ = DELETED if removed else MODIFIED if before else ADDED
        cache.publish(CacheEvent(type_, ObjectRevision(key, rv, str(rv).encode(), {}, {}), before))
        past.append([cache.records[k].body.decode() for k in sorted(cache.records)])
    rv = data.draw(st.integers(0, len(steps)))
    after = data.draw(st.sampled_from(["", "b", "bb"]))
    keys, then = cache.keys_at(rv, after=after)
    bodies = [(then.get(key) or cache.records[key]).body.decode() for key in keys]
    assert all(key > after for key in keys)
    assert bodies == past[rv][len(past[rv]) - len(bodies) :]
    assert after or len(bodies) == len(past[rv])


async def test_a_flood_of_writes_does_not_fill_the_memory(tmp_path: Path):
    store = ObjectStore(StateDatabase(tmp_path / "state.db"), history_bytes=100_000)
    cache = store.cache("things.")
    for number in range(200):
        await store.stage(cache, "a", obj(n=number, filler="x" * 5_000), ({}, {}))
    assert cache.history_bytes < 150_000
    assert cache.horizon > 0
    assert read_json(cache.records["a"].body)["n"] == 199
    await store.close()


def test_state_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path / "state.db")
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("state.db*")}
    database.close()
    assert modes == {"state.db": 0, "state.db-wal": 0}


async def test_write_is_visible_only_when_it_is_on_disk_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = StateDatabase(tmp_path / "state.db", durability=Durability.DISK)
    store = ObjectStore(database)
    cache = store.cache("things.")
    begun, disk = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    syncs: list[int] = []

    def slow_sync() -> None:
        syncs.append(1)
        loop.call_soon_threadsafe(begun.set)
        assert disk.wait(10)

    monkeypatch.setattr(database, "sync", slow_sync)
    seen: list[int] = []
    store.add_listener("things.", lambda event: seen.append(event.record.rv))
    first = store.stage(cache, "a", obj(), ({}, {}))
    await begun.wait()  # the loop runs while the disk is busy
    others = [store.stage(cache, f"b{number}", obj(), ({}, {})) for number in range(20)]
    assert (cache.records, seen, store.revision) == ({}, [], 0)
    assert not first.done()
    disk.set()
    await asyncio.gather(first, *others)
    assert seen == sorted(seen)
    assert len(seen) == 21
    assert len(syncs) == 2, "the writes of one wait share one sync"
    await store.close()


async def test_failed_sync_fails_its_writes_and_every_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = StateDatabase(tmp_path / "state.db", durability=Durability.DISK)
    store = ObjectStore(database)
    cache = store.cache("things.")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StatusError, match=r"the disk of .* has failed"):
            await store.stage(cache, "a", obj(), ({}, {}))
    # A later fsync may succeed without having written the lost pages.
    with pytest.raises(StatusError, match="no write is accepted until"):
        store.stage(cache, "b", obj(), ({}, {}))
    assert cache.records == {}
    await store.close()


class SlowDisk:
    """Syncs that end when the test says so, each in its own way."""

    def __init__(self, database: StateDatabase, patch: pytest.MonkeyPatch) -> None:
        self._results: list[concurrent.futures.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._begun = asyncio.Event()
        self.database = database
        patch.setattr(database, "sync", self._sync)

    def _sync(self) -> None:
        result: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._results.append(result)
        self._loop.call_soon_threadsafe(self._begun.set)
        result.result(10)

    async def begun(self, count: int) -> None:
        while len(self._results) < count:
            self._begun.clear()
            await self._begun.wait()

    def finish(self, number: int, error: Exception | None = None) -> None:
        if error is not None:
            self._results[number].set_exception(error)
        else:
            self._results[number].set_result(None)


@pytest.fixture
async def synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ObjectStore, SlowDisk]]:
    database = StateDatabase(tmp_path / "state.db", durability=Durability.DISK)
    store = ObjectStore(database)
    yield store, SlowDisk(database, monkeypatch)
    await store.close()


async def test_later_sync_that_ends_first_waits_for_the_earlier(
    synced: tuple[ObjectStore, SlowDisk],
) -> None:
    store, disk = synced
    cache = store.cache("things.")
    first = store.stage(cache, "a", obj(n=1), ({}, {}))
    await disk.begun(1)
    second = store.stage(cache, "a", obj(n=2), ({}, {}))
    await disk.begun(2)
    third = store.stage(cache, "a", obj(n=3), ({}, {}))
    disk.finish(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(second)
    assert (first.done(), cache.records) == (False, {})
    disk.finish(0)
    assert (await first).rv < (await second).rv
    await disk.begun(3)
    disk.finish(2)
    assert cache.records == {"a": await third}
    assert (cache.staged, cache.in_flight) == ({}, {})


async def test_failed_later_sync_leaves_the_earlier_write_and_fails_all_others(
    synced: tuple[ObjectStore, SlowDisk],
) -> None:
    store, disk = synced
    cache = store.cache("things.")
    first = store.stage(cache, "a", obj(n=1), ({}, {}))
    await disk.begun(1)
    second = store.stage(cache, "a", obj(n=2), ({}, {}))
    await disk.begun(2)
    third = store.stage(cache, "b", obj(), ({}, {}))
    await disk.begun(3)
    disk.finish(2)
    disk.finish(1, DatabaseError("the disk has failed"))
    disk.finish(0)
    record = await first
    for failed in (second, third):
        with pytest.raises(StatusError, match="the disk has failed"):
            await failed
    assert cache.records == {"a": record}
    assert cache.latest("a") is record


async def test_refused_commit_does_not_fail_the_writes_that_are_being_synced(
    synced: tuple[ObjectStore, SlowDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, disk = synced
    cache = store.cache("things.")
    first = store.stage(cache, "a", obj(n=1), ({}, {}))
    await disk.begun(1)

    def refuse(*_: object) -> None:
        raise DatabaseError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(disk.database, "commit", refuse)
        second = store.stage(cache, "b", obj(), ({}, {}))
        await asyncio.sleep(0)
        disk.finish(0)
        with pytest.raises(StatusError, match="is full"):
            await second
    assert cache.records == {"a": await first}
    third = store.stage(cache, "a", obj(n=3), ({}, {}))
    await disk.begun(2)
    disk.finish(1)
    assert cache.records == {"a": await third}


@pytest.mark.parametrize(
    ("sizes", "total", "limit"),
    [
        pytest.param([], 100, 0, id="no histories"),
        pytest.param([10, 20, 30], 100, 30, id="all fit"),
        pytest.param([10, 200, 20], 100, 70, id="the largest gets the rest"),
        pytest.param([300, 10, 200], 100, 45, id="two large ones share it"),
        pytest.param([50, 50, 50], 100, 33, id="equal ones"),
    ],
)
def test_large_histories_share_what_small_ones_leave(
    sizes: list[int], total: int, limit: int
) -> None:
    assert history_limit(sizes, total) == limit


async def test_flood_of_one_kind_leaves_the_history_of_another(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path / "state.db", durability=Durability.PROCESS)
    store = ObjectStore(database, history_bytes=400_000)
    quiet, loud = store.cache("quiet."), store.cache("loud.")

    def change(number: int) -> dict[str, Any]:
        return {"metadata": {"name": "a"}, "n": number, "filler": "x" * 1000}

    for number in range(20):
        await store.stage(quiet, "a", change(number), ({}, {}))
    for number in range(3_000):
        await store.stage(loud, "a", change(number), ({}, {}))
    assert (quiet.horizon, len(quiet.events)) == (0, 20)
    assert 100 < len(loud.events) < 400, "its newest changes are retained, too"
    assert quiet.history_bytes + loud.history_bytes < 600_000
    await store.close()


def test_revisions_of_an_object_share_its_labels_and_fields() -> None:
    first = make_revision("ns/a", 1, b"{}", ({"app": "x" * 40}, {"phase": "Pending"}), None)
    other = make_revision("ns/b", 2, b"{}", ({"app": "x" * 40}, {}), None)
    later = make_revision(
        "".join(["ns", "/a"]), 3, b"{}", ({"app": "x" * 40}, {"phase": "Running"}), first
    )
    assert later.key is first.key
    assert later.labels is first.labels
    assert (first.fields, later.fields) == ({"phase": "Pending"}, {"phase": "Running"})
    assert next(iter(other.labels.values())) is next(iter(first.labels.values()))
