"""The journal of a master, and the group commit that delays replies until it is written.

The file has a snapshot and the records since, each with its length and checksum:

    MAGIC | length crc32 snapshot | length crc32 record | …          (length 0: no snapshot yet)

Reading stops at a record that a crash has cut off; the records before it are valid. When the
records exceed the snapshot's own size, a new file replaces the old one atomically. The file is
locked: two masters never write one journal.

Group commit: one write for all records of a turn of the event loop, then their replies. "Written"
means that the kernel has the record, so that it survives the process; a reply that must survive the
machine waits for the disk too. With a full disk the master continues, reports the error and tries
again: agents repeat what matters to the next master.

Invariant: a reply leaves only after the records before it are written, a durable one only after
they are on disk. A reply may overtake one that waits for the disk: clients match them by number.
"""

import asyncio
import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gangline.elastic.protocol.messages import JobEvent
    from gangline.elastic.protocol.server import Peer

log = logging.getLogger(__name__)

MAGIC = b"gangline master journal 1\n"
_HEAD = struct.Struct(">II")
MIN_COMPACT_BYTES = 4 * 2**20
"""With fewer bytes of records no new snapshot is written."""
RETRY_S = 1.0
SYNC_EVERY_S = 1.0
"""Interval of syncs that no reply waits for. Not more often: the kernel blocks writes to a file
while it syncs it, which would delay all requests.
"""
_DelayedReply: TypeAlias = "tuple[Peer, int, bytes]"


class JournalError(Exception):
    """The journal cannot be used; the message names it and the reason."""


class Journal:
    """A place where records survive the master. This base stores nothing.

    With it a restarted master knows only what agents report to it.
    """

    is_slow = False
    """True if replies that must survive the machine have to wait for ``sync``."""

    @property
    def needs_compaction(self) -> bool:
        """True if the journal has grown so much that it should be compacted."""
        return False

    def read(self) -> tuple[bytes, list[bytes]]:
        """Return the last snapshot (empty: none) and the records since. Call it once, first."""
        return b"", []

    def set_state_source(
        self, snapshot: Callable[[], bytes], summary: Callable[[], dict[str, str]]
    ) -> None:
        """Set the sources of the state, for a journal that writes complete states.

        The summary is for people and for components that only read.
        """

    def append(self, record: bytes) -> None:
        """Buffer a record; ``write`` writes it."""

    def publish_event(self, event: "JobEvent") -> None:
        """Publish an event of the job's timeline, if the journal has a place for it."""

    def write(self) -> None:
        """Write buffered records so that they survive the process.

        Raises OSError: writing failed; the next call tries again.
        """

    async def sync(self) -> None:
        """Write to disk what was written, so that it survives the machine.

        Raises OSError: that failed.
        """

    async def compact(self, snapshot: bytes) -> None:
        """Replace all records by a snapshot.

        Raises OSError: writing failed; the old records are still valid.
        """

    async def close(self) -> None:
        """Write buffered records and release the journal."""


class FileJournal(Journal):
    """A journal in a file of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[bytes] = []
        self._file = -1
        self._size = 0
        self._snapshot_size = 0
        self._is_synced = True

    is_slow = True

    def read(self) -> tuple[bytes, list[bytes]]:
        """Open, lock and read the file, creating it if it does not exist.

        Raises JournalError: another master uses it, or it is another kind of file.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open_locked()
            content = self._path.read_bytes()
        except OSError as error:
            raise JournalError(f"the journal {self._path} cannot be used: {error}") from error
        if not content.startswith(MAGIC[: len(content)]):
            raise JournalError(f"{self._path} is no journal of a gangline master")
        entries, end = _decode_entries(content)
        if end == 0:
            self._initialize()
            return b"", []
        if end < len(content):
            details = {"journal": str(self._path), "bytes": len(content) - end}
            log.warning("the journal's last record is incomplete and was dropped", extra=details)
        os.ftruncate(self._file, end)
        self._size, self._snapshot_size = end, len(entries[0])
        return entries[0], entries[1:]

    def append(self, record: bytes) -> None:
        self._pending.append(_encode_entry(record))

    @property
    def needs_compaction(self) -> bool:
        records = self._size - self._snapshot_size
        return records > max(MIN_COMPACT_BYTES, 2 * self._snapshot_size)

    def write(self) -> None:
        if not self._pending:
            return
        chunk = b"".join(self._pending)
        self._pending = [chunk]  # retained until it is written
        # At a fixed offset, so that the next call overwrites a write that a full disk cut short.
        _write_all(self._file, chunk, self._size)
        self._pending = []
        self._size += len(chunk)
        self._is_synced = False

    async def sync(self) -> None:
        if self._pending:
            self.write()
        if not self._is_synced:
            self._is_synced = True
            await asyncio.get_running_loop().run_in_executor(None, os.fdatasync, self._file)

    async def compact(self, snapshot: bytes) -> None:
        self._pending.clear()  # the snapshot contains them
        # Not in another thread: no record may be written to the old file meanwhile.
        self._replace(snapshot)

    async def close(self) -> None:
        if self._file < 0:
            return
        try:
            await self.sync()
        finally:
            os.close(self._file)
            self._file = -1

    def _open_locked(self) -> int:
        """Open the file and lock it; repeat if it was replaced in between."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(file)
                raise JournalError(f"another master uses the journal {self._path}") from error
            if os.fstat(file).st_ino == os.stat(self._path).st_ino:
                return file
            os.close(file)

    def _initialize(self) -> None:
        head = MAGIC + _encode_entry(b"")
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, head, 0)
        os.fdatasync(self._file)
        self._size = len(head)

    def _replace(self, snapshot: bytes) -> None:
        content = MAGIC + _encode_entry(snapshot)
        new = self._path.with_name(self._path.name + ".new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            _write_all(file, content, 0)
            os.fsync(file)
            new.replace(self._path)
        except OSError:
            os.close(file)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        os.close(self._file)
        self._file, self._size, self._snapshot_size = file, len(content), len(snapshot)


def _write_all(file: int, content: bytes, offset: int) -> None:
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], offset + written)


def _encode_entry(content: bytes) -> bytes:
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


def _decode_entries(content: bytes) -> tuple[list[bytes], int]:
    """Return the complete entries, and where they end; 0 if not even the snapshot is complete."""
    entries, start = list(_iterate_entries(content)), len(MAGIC)
    if not entries:
        return [], 0
    return entries, start + sum(_HEAD.size + len(entry) for entry in entries)


def _iterate_entries(content: bytes) -> Iterator[bytes]:
    start = len(MAGIC)
    while start + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, start)
        entry = content[start + _HEAD.size : start + _HEAD.size + length]
        if len(entry) < length or zlib.crc32(entry) != checksum:
            return
        yield entry
        start += _HEAD.size + length


class GroupCommit:
    """Delays replies until the journal has the records before them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot: Callable[[], bytes] = bytes
        self._failed: Callable[[OSError], None] = lambda error: None
        self._unwritten: list[_DelayedReply] = []
        """Replies that leave when the journal is written."""
        self._unsafe: list[_DelayedReply] = []
        """Replies that leave when the journal is on disk."""
        self._is_due = False
        self._is_sync_due = False
        self._is_failing = False
        self._awake = asyncio.Event()

    def configure(self, snapshot: Callable[[], bytes], failed: Callable[[OSError], None]) -> None:
        """Set the source of the state, and the callback for a journal that cannot be written."""
        self._snapshot, self._failed = snapshot, failed

    def append_record(self, record: bytes) -> None:
        """Append a record; it is written at the end of this turn of the event loop."""
        self._journal.append(record)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._write)

    def publish_events(self, events: "Sequence[JobEvent]") -> None:
        for event in events:
            self._journal.publish_event(event)

    def send(self, peer: "Peer", number: int, body: bytes, *, is_durable: bool = False) -> None:
        """Send a reply when all records before it are written.

        Args:
            is_durable: wait until the records are on disk, so that they survive the machine.
        """
        if not self._is_due:
            peer.send_body(number, body)
        elif is_durable and self._journal.is_slow and not self._is_failing:
            self._unsafe.append((peer, number, body))
        else:
            self._unwritten.append((peer, number, body))

    async def run(self) -> None:
        """Sync the journal whenever that is due, for ever."""
        while True:
            await self._awake.wait()
            self._awake.clear()
            await self.flush()
            if self._is_failing:
                await asyncio.sleep(RETRY_S)
                self._awake.set()

    async def flush(self) -> None:
        if self._is_due:
            self._write()
        self._is_sync_due = False
        # Only replies whose records are written by now: the sync runs in a thread, and meanwhile
        # others are added, whose records it may not cover.
        unsafe, self._unsafe = self._unsafe, []
        try:
            if self._journal.needs_compaction:
                await self._journal.compact(self._snapshot())
            else:
                await self._journal.sync()
            self._is_failing = False
        except OSError as error:
            # A full disk must not stop the job. If the machine fails too, keys may be lost; agents
            # repeat everything else to the next master.
            self._fail(error)
        _send(unsafe)

    def _write(self) -> None:
        self._is_due = False
        try:
            self._journal.write()
        except OSError as error:
            self._fail(error)
        unwritten, self._unwritten = self._unwritten, []
        _send(unwritten)
        if self._unsafe or self._is_failing or self._journal.needs_compaction:
            self._awake.set()
        elif not self._is_sync_due:
            self._is_sync_due = True
            asyncio.get_running_loop().call_later(SYNC_EVERY_S, self._awake.set)

    def _fail(self, error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.error("the journal cannot be written", extra={"reason": str(error)})
            self._failed(error)


def _send(replies: list[_DelayedReply]) -> None:
    for peer, number, body in replies:
        peer.send_body(number, body)
