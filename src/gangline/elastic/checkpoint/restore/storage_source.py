"""A committed step in storage, read from front to back and verified while it is read."""

import contextlib
import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.format.checksum import checksum
from gangline.elastic.checkpoint.format.manifest import (
    MANIFEST,
    METADATA,
    Manifest,
    decode_manifest,
    step_folder,
)
from gangline.elastic.checkpoint.format.safe_unpickle import read_metadata
from gangline.elastic.checkpoint.restore.source import (
    EntryKey,
    EntryLocation,
    EntryReader,
    read_entry,
)
from gangline.elastic.checkpoint.storage.target import StorageTarget


@dataclass(frozen=True, slots=True)
class _InFile:
    file: str
    offset: int
    length: int
    raw_offset: int
    raw_length: int
    sum: int


class _BufferPool:
    """Memory to read into, reused by the reading threads."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> bytearray:
        """Return a buffer of at least ``size`` bytes."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if len(buffer) >= size:
                    return self._free.pop(number)
        return bytearray(size)

    def put(self, buffer: bytearray) -> None:
        with self._lock:
            self._free.append(buffer)


class StorageSource:
    """A committed step in storage."""

    def __init__(self, target: StorageTarget, step: int) -> None:
        """Read the manifest and the metadata of ``step``.

        Raises:
            CorruptError: one of them is damaged or missing.
            OSError: storage cannot be read.
        """
        self.target, self.step, self.folder = target, step, step_folder(step)
        try:
            self.manifest: Manifest = decode_manifest(target.read(f"{self.folder}/{MANIFEST}"))
            blob = target.read(f"{self.folder}/{METADATA}")
        except FileNotFoundError as error:
            raise CorruptError(f"{self.folder} is incomplete: {error}") from error
        if checksum(blob) != self.manifest.metadata_sum or self.manifest.step != step:
            raise CorruptError(f"{self.folder}/{METADATA} does not belong to the manifest")
        self.metadata = read_metadata(io.BytesIO(blob))
        self.buffers = _BufferPool()
        self.entries = {
            (row[0], row[1]): _InFile(part.file, *row[2:])
            for part in self.manifest.parts
            for row in part.entries
        }

    def ensure_available(self, keys: Sequence[EntryKey]) -> None:
        """Check that the manifest has all entries; nothing is read yet."""
        if unknown := [key for key in keys if key not in self.entries]:
            raise CorruptError(f"{unknown[0][0]!r} is not in the manifest")

    def locate(self, key: EntryKey) -> EntryLocation:
        found = self.entries[key]
        return EntryLocation(found.file, found.offset, found.length)

    @contextlib.contextmanager
    def open_reader(self) -> Iterator[EntryReader]:
        """Open a reader; a file stays open while the next entries are in it."""
        try:
            with contextlib.ExitStack() as files:
                yield _StorageReader(self, files)
        except FileNotFoundError as error:
            raise CorruptError(f"a file of {self.folder} is missing: {error}") from error

    def verify(self) -> None:
        """Read and verify everything.

        Raises:
            CorruptError: something differs from what was written.
        """
        for part in self.manifest.parts:
            with self.target.open(f"{self.folder}/{part.file}") as stream:
                if stream.seek(0, io.SEEK_END) != part.bytes:
                    raise CorruptError(f"{self.folder}/{part.file} is not {part.bytes} bytes long")
        with self.open_reader() as row:
            for key in self.entries:
                row.release(row.raw(key))

    def close(self) -> None: ...


class _StorageReader:
    """Reads entries from storage in one thread.

    The operating system reads ahead if one open file is read from front to back, and object stores
    need one request for each opened file.
    """

    def __init__(self, source: StorageSource, files: contextlib.ExitStack) -> None:
        self._source, self._files = source, files
        self._open: tuple[str, IO[bytes]] | None = None

    def _at(self, found: _InFile) -> IO[bytes]:
        if self._open is None or self._open[0] != found.file:
            self._files.close()
            path = f"{self._source.folder}/{found.file}"
            self._open = found.file, self._files.enter_context(self._source.target.open(path))
        stream = self._open[1]
        stream.seek(found.offset)
        return stream

    def raw(self, key: EntryKey) -> memoryview:
        found = self._source.entries[key]
        # Reused memory is much faster than new memory, whose pages must be faulted in.
        data = memoryview(self._source.buffers.take(found.length))[: found.length]
        _fill(self._at(found), data)
        self._compare(key, found, checksum(data))
        size = found.raw_length or found.length
        return data[found.raw_offset : found.raw_offset + size]

    def copy(self, key: EntryKey, into: memoryview) -> None:
        found = self._source.entries[key]
        stream = self._at(found)
        digest = read_entry(lambda block: _fill(stream, block), found, into)
        self._compare(key, found, digest)

    def _compare(self, key: EntryKey, found: _InFile, digest: int) -> None:
        if digest != found.sum:
            where = f"{self._source.folder}/{found.file}"
            raise CorruptError(f"{key[0]!r} in {where} has a wrong checksum")

    def release(self, raw: memoryview) -> None:
        assert isinstance(raw.obj, bytearray)
        self._source.buffers.put(raw.obj)


def _fill(stream: object, view: memoryview) -> None:
    """Fill the view; an unbuffered file may return fewer bytes at a time."""
    read = getattr(stream, "readinto")  # noqa: B009 - streams of fsspec have no common type
    while len(view):
        got = read(view)
        if not got:
            raise CorruptError("a file ends too early")
        view = view[got:]
