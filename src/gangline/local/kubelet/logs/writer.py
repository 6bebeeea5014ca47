"""Container logs on disk, in the CRI format of Kubernetes' nodes.

Each line of the file is ``TIME STREAM TAG TEXT``: the time of the write, ``stdout`` or ``stderr``,
``F`` for a full line or ``P`` for a partial one, and the bytes as received. A file above the
maximum size is renamed to a name with its time, and the oldest renamed file is removed.
"""

import asyncio
import contextlib
import logging
import os
import time
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)

MAX_BYTES = 10 << 20
MAX_FILES = 5
_PIECE_BYTES = 16 << 10
"""A line without an end is written in pieces of this size."""


class LogWriter:
    """Writes the log of one run of a container."""

    def __init__(
        self, path: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lost_bytes = 0
        """The number of bytes that could not be written."""

        self.loss_reason = ""
        """The reason, such as a full disk."""

        self._max_bytes = max_bytes
        self._max_files = max_files
        self._rest = {"stdout": b"", "stderr": b""}
        self._readers: set[asyncio.Future[None]] = set()
        self._fd = -1
        self._size = 0
        self._open()

    @property
    def closed(self) -> bool:
        """True if the log is complete."""
        return self._fd < 0

    def write(self, stream: str, data: bytes) -> None:
        """Append output in pieces of any size."""
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        head = f"{_timestamp()} {stream} ".encode()
        entries = []
        for line in lines:
            pieces = _pieces(line)
            entries += [head + b"P " + piece + b"\n" for piece in pieces[:-1]]
            entries.append(head + b"F " + pieces[-1] + b"\n")
        if len(rest) >= _PIECE_BYTES:
            *pieces, rest = _pieces(rest)
            entries += [head + b"P " + piece + b"\n" for piece in pieces]
        self._rest[stream] = rest
        if entries:
            self._append(b"".join(entries))

    def close(self) -> None:
        """Write the remaining output without a line end, and wake all readers."""
        if self.closed:
            return
        for stream, rest in self._rest.items():
            if rest:
                self._append(f"{_timestamp()} {stream} P ".encode() + rest + b"\n")
        os.close(self._fd)
        self._fd = -1
        self._wake_readers()

    async def changed(self) -> None:
        """Wait until there is more to read, or the log is complete."""
        if self.closed:
            return
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.add(change)
        try:
            await change
        finally:
            self._readers.discard(change)

    def _append(self, entries: bytes) -> None:
        if self.closed:
            return
        try:
            self._size += os.write(self._fd, entries)
        except OSError as error:
            self._record_loss(len(entries), error)
            return
        if self._size >= self._max_bytes:
            self._rotate()
        self._wake_readers()

    def _record_loss(self, count: int, error: OSError) -> None:
        if not self.loss_reason:
            self.loss_reason = error.strerror or str(error)
            log.warning("log lost: %s", self.loss_reason, extra={"path": str(self.path)})
        self.lost_bytes += count

    def _wake_readers(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)

    def _open(self) -> None:
        # A link or a pipe in place of the log is not written to.
        flags = (
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
        self._fd = os.open(self.path, flags, 0o640)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S.%f")
        try:
            self.path.rename(self.path.with_name(f"{self.path.name}.{stamp}"))
            os.close(self._fd)
            self._open()
        except OSError as error:
            self._record_loss(0, error)
            return
        for old in rotated_files(self.path)[: -(self._max_files - 1) or None]:
            with contextlib.suppress(OSError):
                old.unlink()


def rotated_files(path: Path) -> list[Path]:
    """The rotated files of a log, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.*"))


def _pieces(line: bytes) -> list[bytes]:
    """A line in pieces of the maximum size; at least one, the last one may be empty."""
    if len(line) < _PIECE_BYTES:
        return [line]
    return [line[at : at + _PIECE_BYTES] for at in range(0, len(line) + 1, _PIECE_BYTES)]


def _timestamp() -> str:
    seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanos:09d}Z"
