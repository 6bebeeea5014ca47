"""The format of the state file: how it is created, recognised, and found damaged.

Format 1 (``user_version``): ``log`` has a checksum for each row, because SQLite notices a damaged
page only if its structure is damaged.

``mark`` holds numbers by name:

- ``horizon``: the newest revision whose history was dropped.
- ``logged``: 1 in the file, and 0 in the write-ahead log, while there is one. So 1 without a log
  means that the log, and with it the last acknowledged writes, is lost.
- ``vacuum``: 1 while free pages may hold Secrets in plain text.

SQLite reuses the pages of deleted rows and never makes a file smaller by itself. With
``auto_vacuum=INCREMENTAL`` the last pages of the file can be moved to free ones, a few at a time.
The last backup and restore are recorded beside it.
"""

import contextlib
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from gangline.local.apiserver.storage.durable_files import publish_new, sync_file, write_durably

PAGE_BYTES = 4096
"""SQLite's default, which every state file has."""
RESERVED_BYTES = 16 << 20
"""Free space that stays in the file. History grows and shrinks by less all the time, and pages that
are returned would be allocated again.
"""
STEP_PAGES = 512
"""Pages that one step returns: it delays writes for some milliseconds."""
INCREMENTAL = 2
"""The value of ``PRAGMA auto_vacuum``, which is set before a file has tables."""


def surplus_pages(connection: sqlite3.Connection) -> int:
    """Return how many pages can be returned; 0 or less: none."""
    return _number(connection, "freelist_count") - RESERVED_BYTES // PAGE_BYTES


def free_pages_step(connection: sqlite3.Connection) -> int:
    """Return some pages; the file becomes smaller at its next checkpoint.

    Returns the approximate number of pages that were written to the write-ahead log.
    """
    # A cursor would take only the first of the statement's steps, each of which moves one page.
    connection.executescript(f"PRAGMA incremental_vacuum({STEP_PAGES})")
    return 2 * STEP_PAGES


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


LAST_BACKUP = "last-backup.json"
LAST_RESTORE = "last-restore.json"


class BackupRecord(msgspec.Struct, frozen=True):
    """A backup: its archive, the time of the backup or restore, and a revision."""

    file: str
    at: datetime
    revision: int
    """The revision of the backup, or the one that the cluster continued from after the restore."""


def write_record(path: Path, record: BackupRecord) -> None:
    write_durably(path, msgspec.json.encode(record))


def read_record(path: Path) -> BackupRecord | None:
    """Return the record; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BackupRecord)
    except (OSError, msgspec.DecodeError):
        return None


APPLICATION_ID = 0x47414E47  # "GANG"
FORMAT = 1

SCHEMA = """
CREATE TABLE log (
  rv INTEGER PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL, type TEXT NOT NULL,
  body BLOB NOT NULL, sum INTEGER) STRICT;
CREATE TABLE mark (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
"""


class DatabaseError(Exception):
    """The state file cannot be used. The message contains the reason and a remedy."""


class DamagedDatabase(DatabaseError):
    """The state file, or its write-ahead log, is damaged, incomplete or missing."""


def damaged(
    path: Path, reason: str, otherwise: str = "move it away to start with an empty cluster"
) -> DamagedDatabase:
    """Return the error for a damaged state file, with the remedies."""
    last = read_record(path.with_name(LAST_BACKUP))
    backup = f" (the last backup is {last.file} of {last.at:%Y-%m-%d %H:%M} UTC)" if last else ""
    return DamagedDatabase(
        f"{reason}: restore it from a copy with 'gangline restore FILE --force'{backup}, "
        f"or {otherwise}"
    )


def wal_path(path: Path) -> Path:
    """Return the path of the write-ahead log of a state file."""
    return path.with_name(f"{path.name}-wal")


def row_checksum(rv: int, topic: str, key: str, type_: str, stored: bytes) -> int:
    return zlib.crc32(stored, zlib.crc32(f"{rv}\0{topic}\0{key}\0{type_}\0".encode()))


def create_state_file(path: Path) -> None:
    """Create an empty state file, unless it exists.

    The file appears under its name when it is complete and on disk. An empty file of this name is
    therefore always damage, never an interrupted start. Raises sqlite3.Error, OSError: it cannot be
    created.
    """
    # Created with mode 0600. SQLite gives its log the same mode.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        connection = sqlite3.connect(temporary, isolation_level=None)
        try:
            connection.execute(f"PRAGMA auto_vacuum={INCREMENTAL}")
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.executescript(SCHEMA)
        finally:
            connection.close()
        sync_file(temporary)
        # Of two servers that start at once, neither replaces the file of the other.
        with contextlib.suppress(FileExistsError):
            publish_new(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_files(path: Path) -> None:
    """Refuse files that SQLite would silently replace by an empty or older state.

    Must run before the file is opened: SQLite creates a missing write-ahead log.

    Raises:
        DamagedDatabase: a file is missing or empty.
        sqlite3.Error, OSError: a file cannot be read.
    """
    wal = wal_path(path)
    if not path.exists():
        if wal.exists():
            raise damaged(
                path,
                f"{path} is missing, but its write-ahead log {wal.name} exists",
                "move the log away to start with an empty cluster",
            )
        return
    if path.stat().st_size == 0:
        raise damaged(path, f"{path} is damaged (it is empty)")
    if not wal.exists() and _lacks_its_log(path):
        raise damaged(
            path,
            f"the write-ahead log {wal} is missing, and with it the last acknowledged writes",
            "create it as an empty file to continue without those writes",
        )


def _lacks_its_log(path: Path) -> bool:
    # ``immutable`` reads the file alone: no lock, no log, nothing is created.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    try:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            return False
        row = connection.execute("SELECT value FROM mark WHERE name='logged'").fetchone()
        return row is not None and row[0] == 1
    finally:
        connection.close()


def newest_revision(path: Path) -> int:
    """Return the newest revision of a state file that no server uses. Raises sqlite3.Error: it
    cannot be read.
    """
    with contextlib.closing(_open_existing(path)) as connection:
        return int(
            connection.execute(
                "SELECT max(ifnull((SELECT max(rv) FROM log), 0), "
                "ifnull((SELECT value FROM mark WHERE name='horizon'), 0))"
            ).fetchone()[0]
        )


def list_objects(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield storage name and stored value of each row of a state file that no server uses. Raises
    sqlite3.Error: it cannot be read.
    """
    with contextlib.closing(_open_existing(path)) as connection:
        yield from connection.execute("SELECT topic, body FROM log")


def _open_existing(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another application or of a newer format.

    Raises:
        DatabaseError: the file is foreign or newer.
        sqlite3.Error: the file cannot be read.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise DatabaseError(
            f"{path} is the database of another application: move it away, or use another folder"
        )
    if version > FORMAT:
        raise DatabaseError(
            f"{path} has format {version}, which a newer version of gangline wrote; "
            f"this one reads formats up to {FORMAT}: use the newer version"
        )
