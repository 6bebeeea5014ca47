"""The persistent state: one SQLite table, to which changes are appended in batches.

Each row is one change of one object: ``rv`` is its revision, ``body`` the object after the change.
The newest row of a key is the object's current state, or its last one if it was deleted. Older rows
are the history that watches resume from.

A batch is one transaction, and its writes are acknowledged only after the commit. With the
write-ahead log and ``synchronous=NORMAL``, a killed process loses nothing; a power failure may lose
the last moments. ``FULL`` survives that too.

Without ``FULL`` a commit is a copy into the page cache and takes microseconds. Only ``checkpoint``,
which moves the log into the file, waits for the disk; the store runs it in a thread.

Constraint: used from one thread at a time, which the store guarantees.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SCHEMA = """
CREATE TABLE IF NOT EXISTS log (
  rv INTEGER PRIMARY KEY, topic TEXT NOT NULL, key TEXT NOT NULL, type TEXT NOT NULL,
  body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS mark (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
"""

CHECKPOINT_BYTES = 8 << 20


class DatabaseError(Exception):
    """The state file cannot be used. The message contains the reason and a remedy."""


class LogRow(NamedTuple):
    """One change of one object."""

    rv: int
    topic: str
    key: str
    type: str
    body: bytes


class StateDatabase:
    """The open state file."""

    def __init__(self, path: Path, *, synchronous: str = "NORMAL") -> None:
        self.path = path
        self.syncs_to_disk = synchronous == "FULL"
        self._logged = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The file contains Secrets. SQLite creates its log with the same mode.
            path.touch(mode=0o600)
            path.chmod(0o600)
            self._connection = self._open(synchronous)
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(self._explain(error)) from error

    def _open(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=1.0
        )
        # The exclusive lock excludes a second server and avoids the shared-memory file.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.executescript(SCHEMA)
        return connection

    def rows(self) -> Iterator[LogRow]:
        """Yield all rows, oldest first.

        Raises:
            DatabaseError: the file is damaged.
        """
        try:
            cursor = self._connection.execute(
                "SELECT rv, topic, key, type, body FROM log ORDER BY rv"
            )
            for row in cursor:
                yield LogRow(*row)
        except sqlite3.Error as error:
            raise DatabaseError(self._explain(error)) from error

    def horizon(self) -> int:
        """Return the newest revision whose history was dropped."""
        found = self._connection.execute("SELECT value FROM mark WHERE name='horizon'").fetchone()
        return int(found[0]) if found else 0

    def commit(self, rows: Sequence[LogRow], dropped: Sequence[int], horizon: int) -> None:
        """Append ``rows`` and delete the ``dropped`` revisions in one transaction.

        Raises:
            DatabaseError: nothing was written.
        """
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO log VALUES (?,?,?,?,?)", rows)
            if dropped:
                connection.executemany("DELETE FROM log WHERE rv=?", [(rv,) for rv in dropped])
                connection.execute("INSERT OR REPLACE INTO mark VALUES ('horizon',?)", (horizon,))
            connection.execute("COMMIT")
            self._logged += sum(len(row.body) for row in rows)
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise DatabaseError(self._explain(error)) from error

    @property
    def checkpoint_due(self) -> bool:
        """True if the write-ahead log is large enough for a checkpoint."""
        return self._logged > CHECKPOINT_BYTES

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file. After a failure the next checkpoint does it."""
        self._logged = 0
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Move the write-ahead log into the file and release its lock."""
        self._connection.close()

    def _explain(self, error: Exception) -> str:
        text = str(error)
        if "locked" in text:
            return f"{self.path} is in use by another server: stop that one or use another folder"
        if "full" in text:
            return f"the disk of {self.path} is full: nothing was stored; free some space"
        if "malformed" in text or "not a database" in text:
            return (
                f"{self.path} is damaged ({text}): restore it from a copy, or move it away "
                "to start with an empty cluster"
            )
        return f"cannot use {self.path}: {text}"
