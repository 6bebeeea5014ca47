"""Reads container logs: the last lines, lines since a time, and new lines as they are written."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from gangline.local.kubelet.files.private import open_regular
from gangline.local.kubelet.logs.writer import LogWriter, rotated_files

_BLOCK = 64 << 10


@dataclass(frozen=True, slots=True)
class PodLogOptions:
    """The options of ``kubectl logs``."""

    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None
    timestamps: bool = False
    follow: bool = False


async def read_log(
    path: Path, options: PodLogOptions, writer: LogWriter | None = None
) -> AsyncIterator[bytes]:
    """Yield the logged output in chunks.

    Args:
        path: the current file of the log; its rotated files are read first.
        options: the part of the log to read.
        writer: the writer of the log, if any; following ends when it is closed.

    Raises:
        FileNotFoundError: there is no log.
        OSError: it is not a regular file.
    """
    left = options.limit_bytes
    with _Follower(path, options.tail_lines) as follower:
        while True:
            # Checked before reading, so that lines written during the read are not missed.
            complete = writer is None or writer.closed
            for lines in follower.blocks():
                chunk = b"".join(_shown(lines, options))
                if left is not None:
                    chunk, left = chunk[:left], left - len(chunk[:left])
                if chunk:
                    yield chunk
                if left == 0:
                    return
            if complete or not options.follow or writer is None:
                return
            if not follower.more_to_read():
                await writer.changed()


class _Follower:
    """Reads complete lines of a log across its rotations."""

    def __init__(self, path: Path, tail_lines: int | None) -> None:
        self._path = path
        self._tail_lines = tail_lines
        self._file: BinaryIO | None = None
        self._rest = b""

    def __enter__(self) -> "_Follower":
        files = [*rotated_files(self._path), self._path]
        offset = 0
        if self._tail_lines is not None:
            files, offset = _tail(files, self._tail_lines)
        self._open(files[0], offset)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield the available lines, in lists."""
        while True:
            assert self._file is not None, "used inside its with block"
            while block := self._file.read(_BLOCK):
                *lines, self._rest = (self._rest + block).split(b"\n")
                yield lines
            following = self._following()
            if following is None:
                return
            self._open(following, 0)

    def more_to_read(self) -> bool:
        """True if lines were written since the end was reached."""
        assert self._file is not None, "used inside its with block"
        behind = os.fstat(self._file.fileno()).st_size > self._file.tell()
        return behind or self._following() is not None

    def _following(self) -> Path | None:
        """The file that follows the present one, which has been rotated; None if it is the last."""
        assert self._file is not None, "used inside its with block"
        inode = os.fstat(self._file.fileno()).st_ino
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == inode:
                return None
        files = [*rotated_files(self._path), self._path]
        inodes = [_inode(file) for file in files]
        # The present file may have been removed by now: continue with the oldest one left.
        at = inodes.index(inode) + 1 if inode in inodes else 0
        return files[at] if at < len(files) and inodes[at] is not None else None

    def _open(self, path: Path, offset: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file = open_regular(path)
        self._file.seek(offset)


def _inode(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def _tail(files: list[Path], lines: int) -> tuple[list[Path], int]:
    """The files that contain the last ``lines`` lines, and the offset in the first of them."""
    for at in range(len(files) - 1, -1, -1):
        with open_regular(files[at]) as file:
            offset, found = _tail_offset(file, lines)
        lines -= found
        if lines <= 0 or at == 0:
            return files[at:], offset
    return files, 0


def _tail_offset(file: BinaryIO, lines: int) -> tuple[int, int]:
    """The offset of the last ``lines`` lines of a file, and the number of lines from there."""
    end = file.seek(0, os.SEEK_END)
    if lines <= 0:
        return end, 0
    found, position = 0, end
    while position > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        at = len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            # The line end at the very end of the file closes the last line: it begins none.
            if start + at + 1 < end:
                found += 1
                if found == lines:
                    return start + at + 1, found
        position = start
    return 0, found + (1 if end else 0)


def _shown(lines: list[bytes], options: PodLogOptions) -> Iterator[bytes]:
    """The text of log lines, with or without their times."""
    for line in lines:
        time, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if options.since is not None and _time(time) < options.since:
            continue
        end = b"\n" if tag == b"F" else b""
        yield (time + b" " if options.timestamps else b"") + text + end


def _time(text: bytes) -> datetime:
    """The time of a line; nanoseconds are dropped, since Python's clock has microseconds."""
    return datetime.fromisoformat(text[:26].decode("ascii", "replace") + "+00:00")
