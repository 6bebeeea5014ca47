"""Where a step is read from: the memory of this node, or storage. Nothing leaves here unverified.

Both give an entry's bytes by the name that PyTorch's planner uses, after comparing their checksum.
"""

import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import xxhash
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.header import checksum
from gangline.elastic.checkpoint.layout import Entry
from gangline.elastic.checkpoint.manifest import (
    MANIFEST,
    METADATA,
    Manifest,
    read_manifest,
    step_name,
)
from gangline.elastic.checkpoint.pending import Held
from gangline.elastic.checkpoint.safety import read_metadata
from gangline.elastic.checkpoint.segment import Segment
from gangline.elastic.checkpoint.target import Target

Key = tuple[str, tuple[int, ...] | None]
BLOCK = 1 << 19
"""Bytes that are read and then verified at once: they stay in the processor's cache in between."""


def key_of(index: MetadataIndex) -> Key:
    """How layouts and manifests name what PyTorch names ``index``."""
    return index.fqn, None if index.offset is None else tuple(index.offset)


Fetch = Callable[[Sequence[Key], Metadata], Sequence[Held]]
"""Has parts that hold these keys brought into this node's memory."""


class Source(Protocol):
    """A step that can be read."""

    step: int
    metadata: Metadata

    def raw(self, key: Key) -> memoryview:
        """The verified bytes: raw ones of a tensor, or a pickled value with its padding.

        Raises:
            CorruptError: they are not what was written, or not there.
        """

    def copy(self, key: Key, into: memoryview) -> None:
        """Put the raw bytes of a tensor into ``into``, verifying them on the way.

        Raises:
            CorruptError: they are not what was written; what is in ``into`` then is no use.
        """

    def release(self, raw: memoryview) -> None:
        """Say that what ``raw`` gave is not needed any more."""

    def obtain(self, keys: Sequence[Key]) -> None:
        """Have what will be read. Raises ``CorruptError`` when something cannot be had."""

    def close(self) -> None:
        """Let go of files and memory."""


@dataclass(frozen=True, slots=True)
class _InMemory:
    segment: Segment
    offset: int
    """Where the part begins in the segment."""
    part: memoryview
    entry: Entry
    sum: int | None


class MemorySource:
    """A step in the segments of this node; what it lacks is fetched from where it is."""

    def __init__(self, held: Sequence[Held], fetch: Fetch | None = None) -> None:
        """Open ``held``, saves of one step and plan.

        Raises:
            CorruptError: the metadata are damaged.
        """
        self._segments: list[Segment] = []
        self._entries: dict[Key, _InMemory] = {}
        self._fetch = fetch
        self.unsealed = 0
        """Segments whose checksums nobody had computed yet when the save was needed."""
        for one in held:
            self._add(one)
        self.step = held[0].step
        self.metadata = read_metadata(io.BytesIO(held[0].layout.metadata))

    def _add(self, held: Held) -> None:
        segment = Segment(held.path)
        self._segments.append(segment)
        header = segment.header()
        if header != held.header:
            raise CorruptError(f"{held.path.name} changed while it was looked at")
        sums = segment.seal(header, len(held.layout.entries))
        self.unsealed += sums is None
        part = segment.part(header)
        for number, entry in enumerate(held.layout.entries):
            known = sums[number] if sums else None
            self._entries[entry.key, entry.chunk] = _InMemory(
                segment, header.part_offset, part, entry, known
            )

    def obtain(self, keys: Sequence[Key]) -> None:
        """Fetch from other nodes what this one does not hold."""
        missing = [key for key in keys if key not in self._entries]
        if missing and self._fetch is not None:
            for held in self._fetch(missing, self.metadata):
                self._add(held)
        if lost := [key for key in keys if key not in self._entries]:
            raise CorruptError(f"{len(lost)} values, {lost[0][0]!r} among them, are in no memory")

    def raw(self, key: Key) -> memoryview:
        """The entry's bytes, where they lie."""
        found = self._entries[key]
        entry = found.entry
        whole = found.part[entry.offset : entry.offset + entry.length]
        if found.sum is not None and checksum(whole) != found.sum:
            raise CorruptError(f"{entry.key!r} in {found.segment.path.name} has a wrong checksum")
        return whole[entry.raw_offset : entry.raw_offset + (entry.raw_length or entry.length)]

    def copy(self, key: Key, into: memoryview) -> None:
        """Read the entry to where it is needed.

        Reading costs less than copying from a fresh mapping, whose pages have to be found one by
        one, and a segment that is cut short meanwhile is an error rather than a fatal signal.
        """
        found = self._entries[key]
        entry, at = found.entry, found.offset + found.entry.offset

        def fill(block: memoryview) -> None:
            nonlocal at
            while len(block):
                got = os.preadv(found.segment.descriptor, [block], at)
                if not got:
                    raise CorruptError(f"{found.segment.path.name} ends too early")
                at, block = at + got, block[got:]

        digest = _take(fill, entry, into)
        if found.sum is not None and digest != found.sum:
            raise CorruptError(f"{entry.key!r} in {found.segment.path.name} has a wrong checksum")

    def release(self, raw: memoryview) -> None:
        """Nothing to give back: no copy was made."""

    def close(self) -> None:
        """Unmap the segments."""
        for found in self._entries.values():
            found.part.release()
        self._entries.clear()
        for segment in self._segments:
            segment.close()


@dataclass(frozen=True, slots=True)
class _InFile:
    file: str
    offset: int
    length: int
    raw_offset: int
    raw_length: int
    sum: int


class _Buffers:
    """Memory to read into, used again and again by the threads that read."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> bytearray:
        """A buffer of at least ``size`` bytes."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if len(buffer) >= size:
                    return self._free.pop(number)
        return bytearray(size)

    def put(self, buffer: bytearray) -> None:
        """Give one back."""
        with self._lock:
            self._free.append(buffer)


class StorageSource:
    """A committed step in storage."""

    def __init__(self, target: Target, step: int) -> None:
        """Read the manifest and the metadata of ``step``.

        Raises:
            CorruptError: one of them is damaged or missing.
            OSError: storage cannot be read.
        """
        self.target, self.step, self.folder = target, step, step_name(step)
        try:
            self.manifest: Manifest = read_manifest(target.read(f"{self.folder}/{MANIFEST}"))
            blob = target.read(f"{self.folder}/{METADATA}")
        except FileNotFoundError as error:
            raise CorruptError(f"{self.folder} is not whole: {error}") from error
        if checksum(blob) != self.manifest.metadata_sum or self.manifest.step != step:
            raise CorruptError(f"{self.folder}/{METADATA} does not belong to the manifest")
        self.metadata = read_metadata(io.BytesIO(blob))
        self._buffers = _Buffers()
        self._entries = {
            (row[0], row[1]): _InFile(part.file, *row[2:])
            for part in self.manifest.parts
            for row in part.entries
        }

    def obtain(self, keys: Sequence[Key]) -> None:
        """See that all is there; nothing is read yet."""
        if lost := [key for key in keys if key not in self._entries]:
            raise CorruptError(f"{lost[0][0]!r} is not in the manifest")

    def raw(self, key: Key) -> memoryview:
        """Read the entry."""
        found = self._entries[key]
        # Memory that was used before is much quicker than new one, whose pages have to be had.
        data = memoryview(self._buffers.take(found.length))[: found.length]
        try:
            with self.target.open(f"{self.folder}/{found.file}") as stream:
                stream.seek(found.offset)
                _fill(stream, data)
        except FileNotFoundError as error:
            raise CorruptError(f"{self.folder}/{found.file} is missing") from error
        if checksum(data) != found.sum:
            raise CorruptError(f"{key[0]!r} in {self.folder}/{found.file} has a wrong checksum")
        size = found.raw_length or found.length
        return data[found.raw_offset : found.raw_offset + size]

    def copy(self, key: Key, into: memoryview) -> None:
        """Read the entry to where it is needed."""
        found = self._entries[key]
        try:
            with self.target.open(f"{self.folder}/{found.file}") as stream:
                stream.seek(found.offset)
                digest = _take(lambda block: _fill(stream, block), found, into)
        except FileNotFoundError as error:
            raise CorruptError(f"{self.folder}/{found.file} is missing") from error
        if digest != found.sum:
            raise CorruptError(f"{key[0]!r} in {self.folder}/{found.file} has a wrong checksum")

    def release(self, raw: memoryview) -> None:
        """Use the memory again for what is read next."""
        assert isinstance(raw.obj, bytearray)
        self._buffers.put(raw.obj)

    def verify(self) -> None:
        """Read everything.

        Raises:
            CorruptError: something is not what was written.
        """
        for part in self.manifest.parts:
            with self.target.open(f"{self.folder}/{part.file}") as stream:
                if stream.seek(0, io.SEEK_END) != part.bytes:
                    raise CorruptError(f"{self.folder}/{part.file} is not {part.bytes} bytes long")
        for key in self._entries:
            self.release(self.raw(key))

    def close(self) -> None:
        """Nothing is kept open."""


class _Extent(Protocol):
    """How long an entry is, and where in it the tensor's bytes are."""

    @property
    def length(self) -> int: ...
    @property
    def raw_offset(self) -> int: ...
    @property
    def raw_length(self) -> int: ...


def _take(fill: Callable[[memoryview], None], extent: _Extent, into: memoryview) -> int:
    """Fill ``into`` with the tensor's bytes of an entry that ``fill`` reads; the whole's checksum.

    Each block is summed up where it has arrived, while it is still in the processor's cache, so
    that verifying costs no second walk through memory.
    """
    if len(into) != extent.raw_length:
        raise CorruptError(f"{extent.raw_length} bytes where the shape says {len(into)}")
    around = memoryview(bytearray(extent.length - extent.raw_length))
    blocks = [into[at : at + BLOCK] for at in range(0, len(into), BLOCK)]
    digest = xxhash.xxh3_64()
    for block in (around[: extent.raw_offset], *blocks, around[extent.raw_offset :]):
        fill(block)
        digest.update(block)
    return digest.intdigest()


def _fill(stream: object, view: memoryview) -> None:
    """Read exactly so many bytes; an unbuffered file may give less at a time."""
    read = getattr(stream, "readinto")  # noqa: B009 - streams of fsspec have no common type
    while len(view):
        got = read(view)
        if not got:
            raise CorruptError("a file ends too early")
        view = view[got:]


def tensor_of(
    raw: memoryview, metadata: Metadata, index: MetadataIndex, sizes: Mapping[Key, torch.Size]
) -> torch.Tensor:
    """The tensor chunk that consists of these bytes."""
    properties = metadata.state_dict_metadata[index.fqn].properties  # type: ignore[union-attr]
    shape = sizes[key_of(index)]
    if shape.numel() == 0:
        return torch.empty(shape, dtype=properties.dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(properties.dtype).view(shape)
