"""Sources of a step to restore: this node's memory here, storage in its own module.

Both return an entry's bytes by the name that PyTorch's planner uses, after comparing the checksum.
Invariant: no unverified byte is returned.
"""

import contextlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

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
from gangline.elastic.checkpoint.format.layout import LayoutEntry
from gangline.elastic.checkpoint.format.safe_unpickle import read_metadata
from gangline.elastic.checkpoint.snapshot.inventory import SnapshotInfo
from gangline.elastic.checkpoint.snapshot.segment import Segment

EntryKey = tuple[str, tuple[int, ...] | None]


def entry_key(index: MetadataIndex) -> EntryKey:
    """Return the key that layouts and manifests use for PyTorch's ``index``."""
    return index.fqn, None if index.offset is None else tuple(index.offset)


SnapshotFetcher = Callable[[Sequence[EntryKey], Metadata], Sequence[SnapshotInfo]]
"""Fetches parts with these keys into this node's memory."""
MappedSegments = Callable[[Path], Segment | None]
"""Returns the segment at a path if this process has it mapped for its own saves."""


class EntryLocation(NamedTuple):
    """Location of an entry. Reading in this order reads files from front to back."""

    file: str
    offset: int
    length: int


class EntryReader(Protocol):
    """Reads entries, one after the other, in one thread."""

    def raw(self, key: EntryKey) -> memoryview:
        """Return the verified bytes: raw ones of a tensor, or a pickled value with its padding.

        Raises:
            CorruptError: they differ from what was written, or are missing.
        """

    def copy(self, key: EntryKey, into: memoryview) -> None:
        """Read the raw bytes of a tensor into ``into`` and verify them.

        Raises:
            CorruptError: they differ from what was written; the content of ``into`` is then
                invalid.
        """

    def release(self, raw: memoryview) -> None:
        """Return the memory of ``raw`` to the reader."""


class RestoreSource(Protocol):
    """A step that can be read."""

    step: int
    metadata: Metadata

    def locate(self, key: EntryKey) -> EntryLocation:
        """Return the location of the entry."""

    def open_reader(self) -> contextlib.AbstractContextManager[EntryReader]:
        """Open a reader; each thread needs its own."""

    def ensure_available(self, keys: Sequence[EntryKey]) -> None:
        """Make these entries available. Raises ``CorruptError`` if some cannot be obtained."""

    def close(self) -> None:
        """Release files and memory."""


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

        Raises:
            CorruptError: the metadata is damaged.
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
            known = sums[number] if sums else None
            self._entries[entry.key, entry.chunk] = _InMemory(
                segment, header.part_offset, part, entry, known, known_here is not None
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
        found = self._entries[key]
        return EntryLocation(str(found.segment.path), found.entry.offset, found.entry.length)

    def open_reader(self) -> contextlib.AbstractContextManager[EntryReader]:
        return contextlib.nullcontext(self)

    def raw(self, key: EntryKey) -> memoryview:
        found = self._entries[key]
        entry = found.entry
        entry_bytes = found.part[entry.offset : entry.offset + entry.length]
        if found.sum is not None and checksum(entry_bytes) != found.sum:
            raise CorruptError(f"{entry.key!r} in {found.segment.path.name} has a wrong checksum")
        return entry_bytes[entry.raw_offset : entry.raw_offset + (entry.raw_length or entry.length)]

    def copy(self, key: EntryKey, into: memoryview) -> None:
        """Copy the entry from a mapping that stays, or read it from the file.

        A file that another rank may truncate meanwhile is read: a short read is an error, whereas
        access to a truncated mapping would kill the process.
        """
        found = self._entries[key]
        digest = _copied(found, into) if found.is_mapped else _read(found, into)
        if found.sum is not None and digest != found.sum:
            raise CorruptError(
                f"{found.entry.key!r} in {found.segment.path.name} has a wrong checksum"
            )

    def release(self, raw: memoryview) -> None: ...

    def close(self) -> None:
        for found in self._entries.values():
            found.part.release()
        self._entries.clear()
        for segment in self._segments:
            segment.close()


def _copied(found: _InMemory, into: memoryview) -> int:
    """Copy the tensor's bytes from the mapping; return the checksum of the complete entry."""
    entry = found.entry
    _check_length(entry, into)
    entry_bytes = found.part[entry.offset : entry.offset + entry.length]
    end = entry.raw_offset + entry.raw_length
    destination = numpy.frombuffer(into, numpy.uint8)
    source_bytes = numpy.frombuffer(entry_bytes[entry.raw_offset : end], numpy.uint8)
    total = checksum(entry_bytes[: entry.raw_offset])
    for at in range(0, len(into), COPY_CHUNK):
        if not found.segment.has_full_length():
            raise _cut_short(found)
        chunk = slice(at, at + COPY_CHUNK)
        total = copy_with_checksum(destination[chunk], source_bytes[chunk], total)
    return checksum(entry_bytes[end:], total)


def _read(found: _InMemory, into: memoryview) -> int:
    """Read the tensor's bytes from the file; return the checksum of the complete entry."""
    at = found.offset + found.entry.offset

    def fill(block: memoryview) -> None:
        nonlocal at
        while len(block):
            got = os.preadv(found.segment.descriptor, [block], at)
            if not got:
                raise _cut_short(found)
            at, block = at + got, block[got:]

    return read_entry(fill, found.entry, into)


def _cut_short(found: _InMemory) -> CorruptError:
    return CorruptError(f"{found.segment.path.name} ends too early")


class EntryExtent(Protocol):
    """The length of an entry, and the position of the tensor's bytes in it."""

    @property
    def length(self) -> int: ...

    @property
    def raw_offset(self) -> int: ...

    @property
    def raw_length(self) -> int: ...


def _check_length(extent: EntryExtent, into: memoryview) -> None:
    if len(into) != extent.raw_length:
        raise CorruptError(f"{extent.raw_length} bytes where the shape says {len(into)}")


def read_entry(fill: Callable[[memoryview], None], extent: EntryExtent, into: memoryview) -> int:
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
