"""What a disk holds after a power failure, computed from a record of a process's writes.

``record_writes.c`` records the process. ``Disk`` replays the record up to a cut: a write is on disk
for certain only if an ``fsync`` of its file began after it and ended before the cut, and a name
only if an ``fsync`` of its directory did. Of the rest, ``choose`` decides what the disk has, in
sectors. That is what POSIX promises; file systems keep more.
"""

import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

RECORDER = Path(__file__).with_name("record_writes.c")
HEAD = struct.Struct("<IQQII")
SECTOR = 512
CREATE, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, LINK, MKDIR = range(1, 10)

Choose = Callable[[], bool]
"""Decides whether the disk has one unsynced sector or name."""


def build_recorder(folder: Path) -> Path:
    """Compile the recorder and return the library to load with ``LD_PRELOAD``."""
    library = folder / "record_writes.so"
    command = ["cc", "-shared", "-fPIC", "-O1", RECORDER, "-o", library, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


class Operation(NamedTuple):
    """One record; ``end`` is the size of the log after it."""

    code: int
    inode: int
    offset: int
    first: bytes
    second: bytes
    end: int


def read_log(path: Path) -> list[Operation]:
    """Read all complete records."""
    data, found, at = path.read_bytes(), [], 0
    while at + HEAD.size <= len(data):
        code, inode, offset, first, second = HEAD.unpack_from(data, at)
        middle = at + HEAD.size + first
        at = middle + second
        found.append(
            Operation(code, inode, offset, data[middle - first : middle], data[middle:at], at)
        )
    return found


@dataclass
class File:
    """A file's changes in order: number of the operation, offset, and data or None to truncate."""

    changes: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    synced: int = -1
    """The number of the operation before which all changes are on disk."""

    def content(self, choose: Choose) -> bytes:
        """Return what the disk has of the file."""
        content = bytearray()
        for number, offset, data in self.changes:
            certain = number < self.synced
            if data is None:
                if certain or choose():
                    content = content[:offset].ljust(offset, b"\0")
                continue
            for start in range(0, len(data), len(data) if certain else SECTOR):
                piece = data[start : start + (len(data) if certain else SECTOR)]
                if certain or choose():
                    if len(content) < offset + start:
                        content = content.ljust(offset + start, b"\0")
                    content[offset + start : offset + start + len(piece)] = piece
        return bytes(content)


class Disk:
    """The state of the disk when the power fails after the first ``cut`` bytes of the log."""

    def __init__(self, operations: list[Operation], cut: int) -> None:
        self._present: dict[int, File] = {}
        """By inode number, which may be used again after a file is removed."""
        self._names: list[tuple[int, Operation, File | None]] = []
        self._directory_synced: dict[Path, int] = {}
        self._begun: dict[tuple[int, int], int] = {}
        for number, operation in enumerate(operations):
            if operation.end > cut:
                break
            self._apply(number, operation)

    def _apply(self, number: int, operation: Operation) -> None:
        match operation.code:
            case code if code in (CREATE, RENAME, UNLINK, LINK, MKDIR):
                file = None
                if code == CREATE:
                    file = self._present[operation.inode] = File()
                self._names.append((number, operation, file))
            case code if code in (WRITE, TRUNCATE):
                file = self._present.get(operation.inode)
                if file is not None:
                    data = operation.first if code == WRITE else None
                    file.changes.append((number, operation.offset, data))
            case code if code == SYNC_BEGIN:
                self._begun[operation.inode, operation.offset] = number
            case code if code == SYNC_END:
                began = self._begun[operation.inode, operation.offset]
                path = Path(operation.first.decode())
                self._directory_synced[path] = began
                file = self._present.get(operation.inode)
                if file is not None:
                    file.synced = max(file.synced, began)

    def write_to(self, source: Path, target: Path, choose: Choose) -> None:
        """Create the files below ``source`` as the disk has them, below ``target``."""
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
        names: dict[Path, File] = {}
        lost: set[Path] = set()
        for number, operation, file in self._names:
            path = Path((operation.second or operation.first).decode())
            # A journal of the file system keeps the order of changes of one directory.
            certain = number < self._directory_synced.get(path.parent, -1)
            if path.parent in lost or not (certain or choose()):
                lost.add(path.parent)
                continue
            self._rename(names, operation, path, file)
        for path, file in names.items():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            copy.write_bytes(file.content(choose))
            copy.chmod(0o600)

    @staticmethod
    def _rename(
        names: dict[Path, File], operation: Operation, path: Path, file: File | None
    ) -> None:
        before = Path(operation.first.decode())
        if operation.code == CREATE and file is not None:
            names[path] = file
        elif operation.code == UNLINK:
            names.pop(path, None)
        elif operation.code == RENAME and before in names:
            names[path] = names.pop(before)
        elif operation.code == LINK and before in names:
            names[path] = names[before]


def cuts(operations: list[Operation]) -> Iterator[int]:
    """Yield every position of the log at which the power can fail."""
    return (operation.end for operation in operations)
