"""A file of lines that is rotated by its size. Only its owner can read it.

A full file is renamed to ``NAME-TIME.EXTENSION``, as Kubernetes' API server does, and the oldest
renamed files beyond a limit are removed. Not thread-safe: one thread writes.
"""

import contextlib
import os
import re
import stat
from datetime import UTC, datetime
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_TIME = re.compile(r"-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{6}")


class RotatedFile:
    """An open file of lines."""

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        """Open the file.

        Raises:
            OSError: it cannot be created or opened, or is not a regular file.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._torn = False
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = self._open()

    def append(self, lines: bytes) -> None:
        """Append complete lines, to a new file if this one would exceed its size.

        Raises:
            OSError: they were not written, or only in part. The next call begins a new line.
        """
        if self._descriptor < 0:
            self._descriptor = self._open()
        if self._size and self._size + len(lines) > self._max_bytes:
            self._rotate()
        if self._torn:
            lines = b"\n" + lines
        left = memoryview(lines)
        while left:
            written = os.write(self._descriptor, left)
            self._size += written
            left = left[written:]
            self._torn = bool(left)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(f"{self._path} is not a regular file")
            os.fchmod(descriptor, 0o600)
            self._size = state.st_size
            # A process that was killed may have left an incomplete line.
            self._torn = bool(self._size) and os.pread(descriptor, 1, self._size - 1) != b"\n"
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _rotate(self) -> None:
        path = self._path
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
        self.close()
        # If the folder permits no change, lines are appended to the full file: none is lost.
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f"{path.stem}-{at}{path.suffix}"))
            for old in sorted(self._rotated())[: -self._backups or None]:
                old.unlink()
        self._descriptor = self._open()

    def _rotated(self) -> list[Path]:
        path = self._path
        return [
            found
            for found in path.parent.iterdir()
            if found.suffix == path.suffix
            and found.stem.startswith(path.stem)
            and _TIME.fullmatch(found.stem.removeprefix(path.stem))
        ]
