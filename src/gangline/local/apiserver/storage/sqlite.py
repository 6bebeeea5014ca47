"""The persistent state: one SQLite table, to which changes are appended in batches.

Each row is one change of one object: ``rv`` is its revision, ``body`` the object after the change.
The newest row of a key is the object's current state, or its last one if it was deleted. Older rows
are the history that watches resume from.

A batch is one transaction. ``commit`` appends it to the write-ahead log in the page cache, which
takes microseconds and survives the death of the process. ``sync`` writes the log to disk, which a
commit must wait for to survive a power failure; any number of commits share one. Together they are
SQLite's ``synchronous=FULL``, with the wait in a thread that holds no lock.

Invariant: on the thread that commits, SQLite itself never waits for the disk. With
``synchronous=NORMAL`` it does so in ``checkpoint``, and in the first commit after one, which
``checkpoint`` therefore makes itself. The store runs ``checkpoint`` in a thread.

The write-ahead log is overwritten from its start after a checkpoint, and not truncated: to sync
blocks that exist takes a third of the time of new ones, for which the file system commits the size
of the file, too. The pages of dropped history are reused; ``shrink`` returns them to the file
system in small steps if there are many.

Constraint: the connection is used from one thread at a time, which the store guarantees.
"""

import contextlib
import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gangline.local.apiserver.storage.durable_files import (
    Durability,
    make_directory,
    sync_directory,
)
from gangline.local.apiserver.storage.encryption import ENCRYPTED_TOPICS, EncryptionKeys
from gangline.local.apiserver.storage.state_file import (
    PAGE_BYTES,
    DamagedDatabase,
    DatabaseError,
    check_files,
    check_format,
    create_state_file,
    damaged,
    free_pages_step,
    row_checksum,
    surplus_pages,
    wal_path,
)

__all__ = ["DamagedDatabase", "DatabaseError", "LogRow", "StateDatabase"]

CHECKPOINT_BYTES = 16 << 20
"""Approximate size of the write-ahead log from which it is moved into the file."""
CONCURRENT_SYNCS = 4
"""Eight writers reach nine tenths of their rate without syncs, and a third with one at a time: a
write then waits for the sync that began before it, too.
"""


_StoredRow = tuple[int, str, str, str, bytes, int]
_CheckedRow = tuple[int, str, str, str, bytes, int | None]
"""A row with its checksum."""


class LogRow(NamedTuple):
    """One change of one object."""

    rv: int
    topic: str
    key: str
    type: str
    body: bytes


class StateDatabase:
    """The open state file."""

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = Durability.DISK,
        keys: EncryptionKeys | None = None,
    ) -> None:
        """Open the file; create it if neither it nor its write-ahead log exists. Raises
        DatabaseError: it cannot be used.
        """
        self.path = path
        self.syncs_to_disk = durability == Durability.DISK
        self._keys = keys or EncryptionKeys.none()
        try:
            make_directory(path.parent)
            check_files(path)
            if not path.exists():
                create_state_file(path)
            path.chmod(0o600)  # it contains Secrets, and earlier versions of SQLite's log too
            wal = wal_path(path)
            self._logged = wal.stat().st_size if wal.exists() else 0
            self._connection = self._open()
            # One for each concurrent sync: the kernel reports an error once to each open file, so
            # that a sync cannot take the error of another.
            self._logs = deque(
                os.open(wal, os.O_RDONLY | os.O_CLOEXEC) for _ in range(CONCURRENT_SYNCS)
            )
            sync_directory(path.parent)
            if self.syncs_to_disk:  # what a killed server has committed last is shown to readers
                os.fdatasync(self._logs[0])
        except (sqlite3.Error, OSError) as error:
            raise self._explain(error) from error

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=1.0
        )
        try:
            # The exclusive lock excludes a second server and avoids the shared-memory file.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            check_format(connection, self.path)
            # Before the first write: a damaged file is left as it is.
            self._check_structure(connection, "quick_check")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint=0")
            connection.execute(f"PRAGMA journal_size_limit={2 * CHECKPOINT_BYTES}")
            # The log of a killed server continues: a checkpoint could fill a disk that is nearly
            # full, and the server would not start.
            if not self._logged:
                _checkpoint(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def rows(self) -> Iterator[LogRow]:
        """Yield all rows, oldest first.

        Raises:
            DatabaseError: the file is damaged.
            EncryptionKeyError: the key of an object is missing or is another one.
        """
        with self._explained():  # text may be no UTF-8
            cursor = self._connection.execute(
                "SELECT rv, topic, key, type, body, sum FROM log ORDER BY rv"
            )
            for rv, topic, key, type_, stored, _ in self._checked(cursor):
                yield LogRow(rv, topic, key, type_, self._keys.decrypt(topic, key, stored))

    def _checked(self, cursor: Iterable[_CheckedRow]) -> Iterator[_CheckedRow]:
        for row in cursor:
            if row[5] != row_checksum(*row[:5]):
                raise self.damaged(f"the checksum of revision {row[0]} is wrong")
            yield row

    def horizon(self) -> int:
        """Return the newest revision whose history was dropped. Raises DatabaseError: the file is
        damaged.
        """
        with self._explained():
            return _mark(self._connection, "horizon")

    def encrypt_stored(self) -> int:
        """Encrypt all rows that the first key has not encrypted; return their number.

        Also removes what was stored before from the free pages of the file.

        Raises:
            DatabaseError: nothing was changed.
            EncryptionKeyError: the key of an object is missing or is another one.
        """
        if not self._keys:
            return 0
        connection, changed = self._connection, []
        marks = ",".join("?" * len(ENCRYPTED_TOPICS))
        select = f"SELECT rv, topic, key, type, body FROM log WHERE topic IN ({marks})"
        try:
            for rv, topic, key, type_, stored in connection.execute(
                select, sorted(ENCRYPTED_TOPICS)
            ):
                if not self._keys.is_current(topic, stored):
                    body = self._keys.decrypt(topic, key, stored)
                    changed.append(self._stored_row(LogRow(rv, topic, key, type_, body)))
            if changed:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT OR REPLACE INTO log VALUES (?,?,?,?,?,?)", changed)
                _set_mark(connection, "vacuum", 1)
                connection.execute("COMMIT")
            if _mark(connection, "vacuum"):
                connection.execute("VACUUM")
                _set_mark(connection, "vacuum", 0)
                _checkpoint(connection, "TRUNCATE")  # the log contains the former values, too
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise self._explain(error) from error
        return len(changed)

    def _stored_row(self, row: LogRow) -> _StoredRow:
        return _with_checksum(row._replace(body=self._keys.encrypt(row.topic, row.key, row.body)))

    def commit(self, rows: Sequence[LogRow], dropped: Sequence[int], horizon: int) -> None:
        """Append ``rows`` and delete the ``dropped`` revisions in one transaction. Raises
        DatabaseError: nothing was written.
        """
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO log VALUES (?,?,?,?,?,?)", map(self._stored_row, rows)
            )
            if dropped:
                connection.executemany("DELETE FROM log WHERE rv=?", [(rv,) for rv in dropped])
                _set_mark(connection, "horizon", horizon)
            connection.execute("COMMIT")
            self._logged += _logged_bytes(rows, dropped)
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise self._explain(error) from error

    def shrink(self) -> bool:
        """Move some pages to free ones, so that the next checkpoint makes the file smaller.

        Takes some milliseconds. Returns True if more can be done. Raises DatabaseError: as for
        ``sync``.
        """
        try:
            if surplus_pages(self._connection) <= 0:
                return False
            self._logged += free_pages_step(self._connection) * PAGE_BYTES
            if surplus_pages(self._connection) > 0:
                return True
            self._logged += CHECKPOINT_BYTES  # which makes the file smaller
        except sqlite3.Error as error:
            if _is_disk_failure(error):
                raise self._sync_error(error) from error
        return False  # also if the disk is full: the next compaction tries again

    def set_horizon(self, revision: int) -> None:
        """Drop all history before ``revision``, from which the next write continues. Raises
        DatabaseError: nothing was written.
        """
        with self._explained():
            _set_mark(self._connection, "horizon", revision)

    def check_integrity(self) -> None:
        """Check the structure of the file completely, which takes longer than the check at start.
        Raises DatabaseError: it is damaged.
        """
        with self._explained():
            self._check_structure(self._connection, "integrity_check")

    def copy_current(self, path: Path) -> int:
        """Write a state file of the present objects, without history, to ``path``.

        Values are copied as they are stored, encrypted or not. Returns the newest revision. Raises
        DatabaseError: the file is damaged, or the copy could not be written.
        """
        select = (
            "SELECT rv, topic, key, type, body, sum FROM log WHERE type != 'DELETED' AND rv IN "
            "(SELECT max(rv) FROM log GROUP BY topic, key)"
        )
        with self._explained():
            newest = self._connection.execute("SELECT ifnull(max(rv), 0) FROM log").fetchone()[0]
            revision = max(int(newest), self.horizon())
            rows = self._checked(self._connection.execute(select))
            self._write(path, (_with_checksum(LogRow(*row[:5])) for row in rows), revision)
        return revision

    def write_snapshot(self, path: Path, rows: Iterable[LogRow], revision: int) -> None:
        """Write a state file of these objects at ``revision``, without history, to ``path``.

        Does not use the open file: may run in any thread, while others commit. Raises
        DatabaseError: the file could not be written.
        """
        with self._explained():
            self._write(path, map(self._stored_row, rows), revision)

    @staticmethod
    def _write(path: Path, rows: Iterable[_StoredRow], revision: int) -> None:
        path.unlink(missing_ok=True)
        create_state_file(path)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO log VALUES (?,?,?,?,?,?)", rows)
            _set_mark(connection, "horizon", revision)
            connection.execute("COMMIT")

    def sync(self) -> None:
        """Write all committed rows to disk. May run while another thread commits, and in at most
        ``CONCURRENT_SYNCS`` threads. Raises DatabaseError: it is unknown what the disk has. The
        kernel may have dropped the data, so that a second attempt would succeed without writing
        them: do not try again.
        """
        descriptor = self._logs.popleft()
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise self._sync_error(error) from error
        finally:
            self._logs.append(descriptor)

    @property
    def checkpoint_due(self) -> bool:
        """True if the write-ahead log is large enough for a checkpoint."""
        return self._logged > CHECKPOINT_BYTES

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file. On a full disk the next checkpoint does it.
        Raises DatabaseError: as for ``sync``.
        """
        self._logged = 0
        try:
            _checkpoint(self._connection)
        except sqlite3.Error as error:
            if _is_disk_failure(error):
                raise self._sync_error(error) from error

    def close(self) -> None:
        """Move the write-ahead log into the file and release its lock."""
        with contextlib.suppress(sqlite3.Error):  # on a full disk the log stays as it is
            if _mark(self._connection, "logged"):  # a checkpoint failed
                _set_mark(self._connection, "logged", 0)
        for descriptor in self._logs:
            os.close(descriptor)
        self._connection.close()

    def damaged(self, detail: str) -> DamagedDatabase:
        """Return the error for damage that was found; its message has the remedy."""
        return damaged(self.path, f"{self.path} is damaged ({detail})")

    def _sync_error(self, error: Exception) -> DatabaseError:
        return DatabaseError(
            f"the disk of {self.path} has failed ({error}): no write is accepted until the disk is "
            "repaired and the server is restarted"
        )

    def _check_structure(self, connection: sqlite3.Connection, pragma: str) -> None:
        result = connection.execute(f"PRAGMA {pragma}(1)").fetchone()[0]
        if result != "ok":
            raise self.damaged(result.splitlines()[-1])

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> DatabaseError:
        text = str(error)
        if "locked" in text:
            return DatabaseError(
                f"{self.path} is in use by another server: stop that one or use another folder"
            )
        if "full" in text or "No space" in text:
            return DatabaseError(
                f"the disk of {self.path} is full: nothing was stored; free some space"
            )
        if "malformed" in text or "not a database" in text or "UTF-8" in text or "utf-8" in text:
            return self.damaged(text)
        return DatabaseError(f"cannot use {self.path}: {text}")


def _with_checksum(row: LogRow) -> _StoredRow:
    return (*row, row_checksum(*row))


def _mark(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM mark WHERE name=?", (name,)).fetchone()
    return int(row[0]) if row else 0


def _set_mark(connection: sqlite3.Connection, name: str, value: int) -> None:
    connection.execute("INSERT OR REPLACE INTO mark VALUES (?,?)", (name, value))


def _logged_bytes(rows: Sequence[LogRow], dropped: Sequence[int]) -> int:
    """Return about how much a commit adds to the log: each changed page completely."""
    pages = 2 + len(dropped) + len(rows)
    return pages * PAGE_BYTES + sum(len(row.body) for row in rows)


def _is_disk_failure(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR


def _checkpoint(connection: sqlite3.Connection, mode: str = "RESTART") -> None:
    """Move the write-ahead log into the file, and start the next one.

    The first commit to an empty log writes and syncs its header. That of ``logged`` does it here,
    where waiting for the disk blocks no other write.

    Args:
        connection: the open file.
        mode: ``RESTART`` overwrites the log from its start, ``TRUNCATE`` empties it first.
    """
    _set_mark(connection, "logged", 1)
    try:
        connection.execute(f"PRAGMA wal_checkpoint({mode})")
    finally:
        _set_mark(connection, "logged", 0)
