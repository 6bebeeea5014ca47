"""The state file: damage is found before the first write, and nothing is silently recreated."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.local.apiserver.storage.durability import Durability
from gangline.local.apiserver.storage.encryption import EncryptionKeys
from gangline.local.apiserver.storage.sqlite import DatabaseError, LogRow, StateDatabase
from gangline.local.apiserver.storage.state_file import wal_path

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


def make_format_0(path: Path, topic: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(
            """
            CREATE TABLE IF NOT EXISTS log (
              rv INTEGER PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL, type TEXT NOT NULL,
              body BLOB NOT NULL) STRICT;
            CREATE TABLE IF NOT EXISTS mark (
              name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
            """
        )
        connection.executemany("INSERT INTO log VALUES (?,?,?,?,?)", rows(topic=topic))
        connection.execute("INSERT INTO mark VALUES ('horizon', 7)")


def test_file_of_an_earlier_version_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    make_format_0(path, "configmaps.")
    database = StateDatabase(path, durability=Durability.PROCESS)
    assert database.horizon() == 7
    database.commit(rows(first=1000, count=1), [], 0)
    database.close()
    assert open_all(path) == [*rows(), *rows(first=1000, count=1)]


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_stored_secrets_are_encrypted_when_a_key_is_given(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    make_format_0(path, "secrets.")
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
