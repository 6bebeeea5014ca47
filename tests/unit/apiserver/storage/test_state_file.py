"""The state file: damage is found before the first write, and nothing is silently recreated."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.apiserver.storage.encryption import EncryptionKeys
from gangline.local.apiserver.storage.sqlite import (
    CHECKPOINT_BYTES,
    DatabaseError,
    LogRow,
    StateDatabase,
)
from gangline.local.apiserver.storage.state_file import (
    RESERVED_BYTES,
    wal_path,
)
from gangline.local.apiserver.storage.store import ObjectStore

MARKER = b"the-password-of-the-database"
KEYS = EncryptionKeys({"key1": b"k" * 32}, "/keys")


def rows(first: int = 1, count: int = 200, topic: str = "configmaps.") -> list[LogRow]:
    return [
        LogRow(rv, topic, f"default/o{rv}", "ADDED", b'{"data":"%s %d"}' % (MARKER * 4, rv))
        for rv in range(first, first + count)
    ]


def write_state(path: Path, *, close: bool = True) -> StateDatabase:
    database = StateDatabase(path, durability=Durability.PROCESS)
    database.commit(rows(), [], 0)
    if close:
        database.close()
    return database


def open_all(path: Path) -> list[LogRow]:
    database = StateDatabase(path, durability=Durability.PROCESS)
    try:
        return list(database.rows())
    finally:
        database.close()


def flip_value(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(MARKER, len(data) // 2)
    data[at] ^= 1
    path.write_bytes(data)


def zero_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 5] = bytes(8192)
    path.write_bytes(data)


def truncate_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def truncate_all(path: Path) -> None:
    os.truncate(path, 0)


def write_text(path: Path) -> None:
    path.write_bytes(b"this is not a database, whatever its name says" * 100)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(flip_value, r"checksum of revision \d+ is wrong", id="one bit of a value"),
        pytest.param(zero_pages, "is damaged", id="pages of zeros"),
        pytest.param(truncate_half, "is damaged", id="half of the file"),
        pytest.param(truncate_all, "is damaged .it is empty", id="empty file"),
        pytest.param(write_text, "not a database", id="text"),
    ],
)
def test_damaged_file_is_refused_with_remedies(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "state.db"
    write_state(path)
    damage(path)
    with pytest.raises(DatabaseError, match=message) as refused:
        open_all(path)
    assert "restore it from a copy" in str(refused.value)


@pytest.mark.parametrize("damage", [zero_pages, truncate_half, truncate_all, write_text])
def test_damaged_file_is_left_as_it_is(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "state.db"
    write_state(path)
    damage(path)
    before = path.read_bytes()
    with pytest.raises(DatabaseError):
        open_all(path)
    assert path.read_bytes() == before


def test_missing_write_ahead_log_is_refused_until_the_loss_is_accepted(tmp_path: Path) -> None:
    database = write_state(tmp_path / "state.db", close=False)
    path = tmp_path / "copy" / "state.db"
    path.parent.mkdir()
    shutil.copy(tmp_path / "state.db", path)
    database.close()
    for _ in range(2):  # the first refusal must not create the log
        with pytest.raises(DatabaseError, match=r"write-ahead log .* is missing.*restore it"):
            open_all(path)
    wal_path(path).touch()
    assert open_all(path) == []


def test_write_ahead_log_that_another_tool_moved_into_the_file_is_not_missed(
    tmp_path: Path,
) -> None:
    database = write_state(tmp_path / "state.db", close=False)
    path = tmp_path / "copy" / "state.db"
    path.parent.mkdir()
    shutil.copy(tmp_path / "state.db", path)
    shutil.copy(wal_path(tmp_path / "state.db"), wal_path(path))
    database.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM log")
    assert not wal_path(path).exists()
    assert open_all(path) == rows()


def test_missing_state_file_beside_its_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    wal_path(path).write_bytes(b"x")
    with pytest.raises(DatabaseError, match=r"state.db is missing, but its write-ahead log"):
        StateDatabase(path)
    assert not path.exists()


def test_database_of_another_application_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="database of another application"):
        StateDatabase(path)
    assert path.read_bytes() == before


def test_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    write_state(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(DatabaseError, match="has format 99, which a newer version"):
        StateDatabase(path)


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_stored_secrets_are_encrypted_when_a_key_is_given(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = StateDatabase(path, durability=Durability.PROCESS)
    database.commit(rows(topic="secrets."), [], 0)
    database.close()
    # Rows that were deleted long ago are in free pages.
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM log WHERE rv > 100")
    assert MARKER in all_bytes(tmp_path)
    database = StateDatabase(path, durability=Durability.PROCESS, keys=KEYS)
    assert database.encrypt_stored() == 100
    assert MARKER not in all_bytes(tmp_path)
    assert list(database.rows()) == rows(count=100, topic="secrets.")
    assert database.encrypt_stored() == 0
    database.close()
    assert MARKER not in all_bytes(tmp_path)


def test_rotation_encrypts_with_the_new_first_key(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = StateDatabase(path, durability=Durability.PROCESS, keys=KEYS)
    database.commit(rows(topic="secrets."), [], 0)
    database.close()
    both = EncryptionKeys({"key2": b"n" * 32, **KEYS.keys}, "/keys")
    database = StateDatabase(path, durability=Durability.PROCESS, keys=both)
    assert database.encrypt_stored() == 200
    database.close()
    new_only = EncryptionKeys({"key2": b"n" * 32}, "/keys")
    database = StateDatabase(path, durability=Durability.PROCESS, keys=new_only)
    assert list(database.rows()) == rows(topic="secrets.")
    database.close()
    assert b":key1:" not in all_bytes(tmp_path)


def test_two_servers_that_create_the_file_at_once_use_the_same(tmp_path: Path) -> None:
    first = StateDatabase(tmp_path / "state.db")
    with pytest.raises(DatabaseError, match="in use by another server"):
        StateDatabase(tmp_path / "state.db")
    first.commit(rows(), [], 0)
    first.close()
    assert open_all(tmp_path / "state.db") == rows()
    assert {path.name for path in tmp_path.iterdir()} == {"state.db"}


NO_INDEX: tuple[dict[str, str], dict[str, str]] = ({}, {})


def obj(**data: Any) -> dict[str, Any]:
    return {"metadata": {"name": "it"}, **data}


def open_store(path: Path, **options: Any) -> ObjectStore:
    store = ObjectStore(StateDatabase(path, durability=Durability.PROCESS), **options)
    store.load(lambda topic, body: NO_INDEX)
    return store


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
