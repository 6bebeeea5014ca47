"""The state file and its log stay small: dropped rows do not keep their space."""

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gangline.local.apiserver.storage.durability import Durability
from gangline.local.apiserver.storage.free_pages import INCREMENTAL, RESERVED_BYTES
from gangline.local.apiserver.storage.sqlite import (
    CHECKPOINT_BYTES,
    DatabaseError,
    LogRow,
    StateDatabase,
)
from gangline.local.apiserver.storage.state_file import (
    APPLICATION_ID,
    FORMAT,
    SCHEMA,
    row_checksum,
    wal_path,
)
from gangline.local.apiserver.storage.store import ObjectStore

NO_INDEX: tuple[dict[str, str], dict[str, str]] = ({}, {})


def obj(**data: Any) -> dict[str, Any]:
    return {"metadata": {"name": "it"}, **data}


def open_store(path: Path, **options: Any) -> ObjectStore:
    store = ObjectStore(StateDatabase(path, durability=Durability.PROCESS), **options)
    store.load(lambda topic, body: NO_INDEX)
    return store


def write_earlier_file(path: Path, count: int) -> None:
    """Write a state file of an earlier version: SQLite never makes it smaller."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={FORMAT}")
        connection.executescript(SCHEMA)
        for rv in range(1, count + 1):
            row = (rv, "things.", f"default/o{rv}", "ADDED", b'{"n":%d}' % rv)
            connection.execute("INSERT INTO log VALUES (?,?,?,?,?,?)", (*row, row_checksum(*row)))


def mode_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("PRAGMA auto_vacuum").fetchone()[0]
    return found


async def test_file_shrinks_after_objects_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = open_store(path, history_bytes=1 << 20)
    cache = store.cache("things.")
    keys = [f"k{number}" for number in range(600)]
    await store.stage(cache, "stays", obj(n=1), NO_INDEX)
    for key in keys:
        await store.stage(cache, key, obj(filler="x" * 100_000), NO_INDEX)
    grown = path.stat().st_size
    for key in keys:
        await store.stage(cache, key, obj(), NO_INDEX, removed=True)
    store.compact(older_than=float("inf"))
    await asyncio.sleep(0)
    assert store._committing is not None
    await store._committing
    assert grown > 40 << 20
    assert path.stat().st_size < RESERVED_BYTES + (4 << 20)
    await store.close()
    again = open_store(path)
    assert list(again.cache("things.").records) == ["stays"]
    await again.close()


async def test_writes_do_not_wait_until_the_file_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = StateDatabase(tmp_path / "state.db", durability=Durability.PROCESS)
    store = ObjectStore(database)
    cache = store.cache("things.")
    await store.stage(cache, "a", obj(), NO_INDEX)
    steps: list[int] = []

    def endless_step() -> bool:
        steps.append(1)
        return True

    monkeypatch.setattr(database, "shrink", endless_step)
    store.compact(older_than=float("inf"))
    for number in range(20):
        await store.stage(cache, "a", obj(n=number), NO_INDEX)
    while len(steps) < 5:
        await asyncio.sleep(0)
    await store.close()  # it does not wait for the steps that are left


async def test_log_has_a_bounded_size_and_is_not_truncated(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = open_store(path)
    cache = store.cache("things.")
    sizes = []
    for number in range(3_000):
        await store.stage(cache, "a", obj(n=number, filler="x" * 20_000), NO_INDEX)
        sizes.append(wal_path(path).stat().st_size)
    assert max(sizes) < 2 * CHECKPOINT_BYTES
    assert sizes == sorted(sizes), "blocks that exist are synced faster than new ones"
    assert path.stat().st_size > 10 << 20, "the log was moved into the file"
    await store.close()


@pytest.fixture
def earlier_file(tmp_path: Path) -> Path:
    path = tmp_path / "state.db"
    write_earlier_file(path, 500)
    assert mode_of(path) == 0
    return path


async def test_earlier_file_is_rewritten_once_at_start(
    earlier_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        store = open_store(earlier_file)
        assert len(store.cache("things.").records) == 500
        await store.close()
    assert mode_of(earlier_file) == INCREMENTAL
    assert [record.message for record in caplog.records if "rewriting" in record.message] == [
        "rewriting the state file once, so that it can become smaller"
    ]


class Usage(NamedTuple):
    """The result of ``shutil.disk_usage``."""

    total: int
    used: int
    free: int


async def test_earlier_file_stays_as_it_is_on_a_disk_that_is_nearly_full(
    earlier_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 1 << 40, 1 << 20))
    store = open_store(earlier_file)
    assert len(store.cache("things.").records) == 500
    await store.close()
    assert mode_of(earlier_file) == 0


async def test_deleted_object_does_not_return_when_rows_could_not_be_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    database = StateDatabase(path, durability=Durability.PROCESS)
    store = ObjectStore(database)
    cache = store.cache("things.")
    await store.stage(cache, "a", obj(n=1), NO_INDEX)
    await store.stage(cache, "a", obj(n=2), NO_INDEX)

    def refuse(rows: list[LogRow], dropped: list[int], horizon: int) -> None:
        raise DatabaseError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(database, "commit", refuse)
        store.compact(older_than=float("inf"))  # drops the first revision
        assert store._committing is not None
        await store._committing
    await store.stage(cache, "a", obj(n=2), NO_INDEX, removed=True)
    store.compact(older_than=float("inf"))  # drops the second revision and the deletion
    await store.close()
    again = open_store(path)
    assert again.cache("things.").records == {}
    await again.close()


async def test_many_rows_are_dropped_in_short_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    database = StateDatabase(path, durability=Durability.PROCESS)
    store = ObjectStore(database)
    cache = store.cache("things.")
    done = [store.stage(cache, "a", obj(n=number), NO_INDEX) for number in range(2_000)]
    await asyncio.gather(*done)
    counts: list[int] = []
    commit = database.commit

    def counted(rows: list[LogRow], dropped: list[int], horizon: int) -> None:
        counts.append(len(dropped))
        commit(rows, dropped, horizon)

    monkeypatch.setattr(database, "commit", counted)
    store.compact(older_than=float("inf"))
    await store.close()
    assert (sum(counts), max(counts)) == (1_999, 500)
    again = open_store(path)
    assert len(again.cache("things.").events) == 1
    await again.close()
