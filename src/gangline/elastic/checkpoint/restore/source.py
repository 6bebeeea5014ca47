"""Sources of a step to restore: the memory of this node, or a committed step in storage.

Both return an entry's bytes by the name that PyTorch's planner uses, after comparing the checksum;
the step in storage is read from front to back. Invariant: no unverified byte is returned. The only
exception are saves in memory whose checksums are not computed yet.
"""

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self

import numpy
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.format.checksum import (
    CHECKSUM_BLOCK,
    COPY_CHUNK,
    checksum,
    copy_with_checksum,
)
from gangline.elastic.checkpoint.format.manifest import (
    MANIFEST,
    METADATA,
    LayoutEntry,
    Manifest,
    decode_manifest,
    step_folder,
)
from gangline.elastic.checkpoint.format.torch_framing import read_metadata
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import Segment
from gangline.elastic.checkpoint.storage.target import StorageTarget

EntryKey = tuple[str, tuple[int, ...] | None]
SnapshotFetcher = Callable[[Sequence[EntryKey], Metadata], Sequence[SnapshotInfo]]
"""Fetches parts with these keys into this node's memory."""
MappedSegments = Callable[[Path], Segment | None]
"""Returns the segment at a path if this process has it mapped for its own saves."""


def entry_key(index: MetadataIndex) -> EntryKey:
    """Return the key that layouts and manifests use for PyTorch's ``index``."""
    return index.fqn, None if index.offset is None else tuple(index.offset)


class EntryLocation(NamedTuple):
    """Location of an entry. Reading in this order reads files from front to back."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _InFile:
    file: str
    offset: int
    length: int
    raw_offset: int
    raw_length: int
    sum: int


@dataclass(frozen=True, slots=True)
class _InMemory:
    segment: Segment
    offset: int
    """Offset of the part in the segment."""
    part: memoryview
    entry: LayoutEntry
    sum: int | None
    is_mapped: bool
    """True if the part's pages are mapped by this process, so that they can be copied."""


class MemorySource:
    """A step in the segments of this node; missing parts are fetched from other nodes."""

    def __init__(
        self,
        snapshots: Sequence[SnapshotInfo],
        fetch: SnapshotFetcher | None = None,
        mapped: MappedSegments | None = None,
    ) -> None:
        """Open ``snapshots``, saves of one step and plan; segments that are ``mapped`` are reused.

        Raises CorruptError: the metadata is damaged.
        """
        self._segments: list[Segment] = []
        self._entries: dict[EntryKey, _InMemory] = {}
        self._fetch, self._mapped = fetch, mapped
        for one in snapshots:
            self._add(one)
        self.step = snapshots[0].step
        self.metadata = read_metadata(io.BytesIO(snapshots[0].layout.metadata))

    def _add(self, snapshot: SnapshotInfo) -> None:
        known_here = self._mapped(snapshot.path) if self._mapped else None
        segment = known_here or Segment(snapshot.path)
        if known_here is None:
            self._segments.append(segment)
        header = segment.read_header()
        if header != snapshot.header:
            raise CorruptError(f"{snapshot.path.name} changed while it was read")
        sums = segment.read_seal(header, len(snapshot.layout.entries))
        part = segment.part(header)
        for number, entry in enumerate(snapshot.layout.entries):
            checksum_in_seal = sums[number] if sums else None
            self._entries[entry.key, entry.chunk] = _InMemory(
                segment, header.part_offset, part, entry, checksum_in_seal, known_here is not None
            )

    def ensure_available(self, keys: Sequence[EntryKey]) -> None:
        """Fetch missing entries from other nodes."""
        missing = [key for key in keys if key not in self._entries]
        if missing and self._fetch is not None:
            for snapshot in self._fetch(missing, self.metadata):
                self._add(snapshot)
        if unavailable := [key for key in keys if key not in self._entries]:
            raise CorruptError(
                f"{len(unavailable)} values, such as {unavailable[0][0]!r}, are in no memory"
            )

    def locate(self, key: EntryKey) -> EntryLocation:
        held = self._entries[key]
        return EntryLocation(str(held.segment.path), held.entry.offset, held.entry.length)

    def open_reader(self) -> contextlib.nullcontext[Self]:
        """Open a reader of entries, one after the other; each thread needs its own."""
        return contextlib.nullcontext(self)

    def raw(self, key: EntryKey) -> memoryview:
        """Return the verified bytes: raw ones of a tensor, or a pickled value with its padding.

        Raises CorruptError: they differ from what was written, or are missing.
        """
        held = self._entries[key]
        entry = held.entry
        entry_bytes = held.part[entry.offset : entry.offset + entry.length]
        if held.sum is not None and checksum(entry_bytes) != held.sum:
            raise CorruptError(f"{entry.key!r} in {held.segment.path.name} has a wrong checksum")
        return entry_bytes[entry.raw_offset : entry.raw_offset + (entry.raw_length or entry.length)]

    def copy(self, key: EntryKey, into: memoryview) -> None:
        """Copy the entry from a mapping that stays, or read it from the file; verify it.

        Raises CorruptError: it differs from what was written; ``into`` is invalid then.
        A file that another rank may truncate meanwhile is read: a short read is an error, whereas
        access to a truncated mapping would kill the process.
        """
        held = self._entries[key]
        digest = _copied(held, into) if held.is_mapped else _read(held, into)
        if held.sum is not None and digest != held.sum:
            raise CorruptError(
                f"{held.entry.key!r} in {held.segment.path.name} has a wrong checksum"
            )

    def release(self, raw: memoryview) -> None:
        """Return the memory of ``raw`` to the reader."""

    def close(self) -> None:
        for held in self._entries.values():
            held.part.release()
        self._entries.clear()
        for segment in self._segments:
            segment.close()


def _copied(held: _InMemory, into: memoryview) -> int:
    """Copy the tensor's bytes from the mapping; return the checksum of the complete entry."""
    entry = held.entry
    _check_length(entry, into)
    entry_bytes = held.part[entry.offset : entry.offset + entry.length]
    end = entry.raw_offset + entry.raw_length
    destination = numpy.frombuffer(into, numpy.uint8)
    source_bytes = numpy.frombuffer(entry_bytes[entry.raw_offset : end], numpy.uint8)
    total = checksum(entry_bytes[: entry.raw_offset])
    for at in range(0, len(into), COPY_CHUNK):
        if not held.segment.has_full_length():
            raise _cut_short(held)
        chunk = slice(at, at + COPY_CHUNK)
        total = copy_with_checksum(destination[chunk], source_bytes[chunk], total)
    return checksum(entry_bytes[end:], total)


def _read(held: _InMemory, into: memoryview) -> int:
    """Read the tensor's bytes from the file; return the checksum of the complete entry."""
    at = held.offset + held.entry.offset

    def fill(block: memoryview) -> None:
        nonlocal at
        while len(block):
            got = os.preadv(held.segment.descriptor, [block], at)
            if not got:
                raise _cut_short(held)
            at, block = at + got, block[got:]

    return read_entry(fill, held.entry, into)


def _cut_short(held: _InMemory) -> CorruptError:
    return CorruptError(f"{held.segment.path.name} ends too early")


def _check_length(extent: LayoutEntry | _InFile, into: memoryview) -> None:
    if len(into) != extent.raw_length:
        raise CorruptError(f"{extent.raw_length} bytes where the shape says {len(into)}")


def read_entry(
    fill: Callable[[memoryview], None], extent: LayoutEntry | _InFile, into: memoryview
) -> int:
    """Read an entry with its tensor's bytes into ``into``; return the entry's checksum.

    Each block is added to the checksum while it is still in the processor's cache, so that
    verification needs no second pass over memory.
    """
    _check_length(extent, into)
    around = memoryview(bytearray(extent.length - extent.raw_length))
    blocks = [into[at : at + CHECKSUM_BLOCK] for at in range(0, len(into), CHECKSUM_BLOCK)]
    total = 0
    for block in (around[: extent.raw_offset], *blocks, around[extent.raw_offset :]):
        fill(block)
        total = checksum(block, total)
    return total


def tensor_from_bytes(
    raw: memoryview, metadata: Metadata, index: MetadataIndex, sizes: Mapping[EntryKey, torch.Size]
) -> torch.Tensor:
    properties = metadata.state_dict_metadata[index.fqn].properties  # type: ignore[union-attr]
    shape = sizes[entry_key(index)]
    if shape.numel() == 0:
        return torch.empty(shape, dtype=properties.dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(properties.dtype).view(shape)


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
        stored = self.entries[key]
        return EntryLocation(stored.file, stored.offset, stored.length)

    @contextlib.contextmanager
    def open_reader(self) -> Iterator["_StorageReader"]:
        """Open a reader; a file stays open while the next entries are in it."""
        try:
            with contextlib.ExitStack() as files:
                yield _StorageReader(self, files)
        except FileNotFoundError as error:
            raise CorruptError(f"a file of {self.folder} is missing: {error}") from error

    def verify(self) -> None:
        """Read and verify everything.

        Raises CorruptError: something differs from what was written.
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

    def _at(self, stored: _InFile) -> IO[bytes]:
        if self._open is None or self._open[0] != stored.file:
            self._files.close()
            path = f"{self._source.folder}/{stored.file}"
            self._open = stored.file, self._files.enter_context(self._source.target.open(path))
        stream = self._open[1]
        stream.seek(stored.offset)
        return stream

    def raw(self, key: EntryKey) -> memoryview:
        stored = self._source.entries[key]
        # Reused memory is much faster than new memory, whose pages must be faulted in.
        data = memoryview(self._source.buffers.take(stored.length))[: stored.length]
        _fill(self._at(stored), data)
        self._compare(key, stored, checksum(data))
        size = stored.raw_length or stored.length
        return data[stored.raw_offset : stored.raw_offset + size]

    def copy(self, key: EntryKey, into: memoryview) -> None:
        stored = self._source.entries[key]
        stream = self._at(stored)
        digest = read_entry(lambda block: _fill(stream, block), stored, into)
        self._compare(key, stored, digest)

    def _compare(self, key: EntryKey, stored: _InFile, digest: int) -> None:
        if digest != stored.sum:
            where = f"{self._source.folder}/{stored.file}"
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


RestoreSource = MemorySource | StorageSource
EntryReader = MemorySource | _StorageReader
