"""Where a step is read from: the memory of this node; ``stored`` has storage. Nothing leaves here
unverified.

Both give an entry's bytes by the name that PyTorch's planner uses, after comparing their checksum.
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
from gangline.elastic.checkpoint.layout import Entry
from gangline.elastic.checkpoint.pending import Held
from gangline.elastic.checkpoint.safety import read_metadata
from gangline.elastic.checkpoint.segment import Segment
from gangline.elastic.checkpoint.sums import BLOCK, STRETCH, checksum, copy_summed

Key = tuple[str, tuple[int, ...] | None]


def key_of(index: MetadataIndex) -> Key:
    """How layouts and manifests name what PyTorch names ``index``."""
    return index.fqn, None if index.offset is None else tuple(index.offset)


Fetch = Callable[[Sequence[Key], Metadata], Sequence[Held]]
"""Has parts that hold these keys brought into this node's memory."""
Mapped = Callable[[Path], Segment | None]
"""The segment at a path, if this process keeps it mapped for its own saves."""


class Where(NamedTuple):
    """Where an entry lies. What is read in this order is read from front to back."""

    file: str
    offset: int
    length: int


class Row(Protocol):
    """What one thread reads, entry by entry."""

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


class Source(Protocol):
    """A step that can be read."""

    step: int
    metadata: Metadata

    def where(self, key: Key) -> Where:
        """Where the entry lies."""

    def row(self) -> contextlib.AbstractContextManager[Row]:
        """Begin to read; each thread has one of its own."""

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
    is_mapped: bool
    """Whether the part's pages are where they can be copied from."""


class MemorySource:
    """A step in the segments of this node; what it lacks is fetched from where it is."""

    def __init__(
        self,
        held: Sequence[Held],
        fetch: Fetch | None = None,
        mapped: Mapped | None = None,
    ) -> None:
        """Open ``held``, saves of one step and plan; what is ``mapped`` is not mapped again.

        Raises:
            CorruptError: the metadata are damaged.
        """
        self._segments: list[Segment] = []
        self._entries: dict[Key, _InMemory] = {}
        self._fetch, self._mapped = fetch, mapped
        self.unsealed = 0
        """Segments whose checksums nobody had computed yet when the save was needed."""
        for one in held:
            self._add(one)
        self.step = held[0].step
        self.metadata = read_metadata(io.BytesIO(held[0].layout.metadata))

    def _add(self, held: Held) -> None:
        known_here = self._mapped(held.path) if self._mapped else None
        segment = known_here or Segment(held.path)
        if known_here is None:
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
                segment, header.part_offset, part, entry, known, known_here is not None
            )

    def obtain(self, keys: Sequence[Key]) -> None:
        """Fetch from other nodes what this one does not hold."""
        missing = [key for key in keys if key not in self._entries]
        if missing and self._fetch is not None:
            for held in self._fetch(missing, self.metadata):
                self._add(held)
        if lost := [key for key in keys if key not in self._entries]:
            raise CorruptError(f"{len(lost)} values, {lost[0][0]!r} among them, are in no memory")

    def where(self, key: Key) -> Where:
        """The segment and the place in it."""
        found = self._entries[key]
        return Where(str(found.segment.path), found.entry.offset, found.entry.length)

    def row(self) -> contextlib.AbstractContextManager[Row]:
        """Itself: nothing is opened to read."""
        return contextlib.nullcontext(self)

    def raw(self, key: Key) -> memoryview:
        """The entry's bytes, where they lie."""
        found = self._entries[key]
        entry = found.entry
        whole = found.part[entry.offset : entry.offset + entry.length]
        if found.sum is not None and checksum(whole) != found.sum:
            raise CorruptError(f"{entry.key!r} in {found.segment.path.name} has a wrong checksum")
        return whole[entry.raw_offset : entry.raw_offset + (entry.raw_length or entry.length)]

    def copy(self, key: Key, into: memoryview) -> None:
        """Put the entry where it is needed: copied from a mapping that stays, or read.

        A file that another rank may cut short meanwhile is read: that ends in an error, where a
        mapping would end the process.
        """
        found = self._entries[key]
        digest = _copied(found, into) if found.is_mapped else _read(found, into)
        if found.sum is not None and digest != found.sum:
            raise CorruptError(
                f"{found.entry.key!r} in {found.segment.path.name} has a wrong checksum"
            )

    def release(self, raw: memoryview) -> None:
        """Nothing to give back: no copy was made."""

    def close(self) -> None:
        """Unmap the segments."""
        for found in self._entries.values():
            found.part.release()
        self._entries.clear()
        for segment in self._segments:
            segment.close()


def _copied(found: _InMemory, into: memoryview) -> int:
    """Copy the tensor's bytes from the mapping; the checksum of the whole entry."""
    entry = found.entry
    _see_length(entry, into)
    whole = found.part[entry.offset : entry.offset + entry.length]
    end = entry.raw_offset + entry.raw_length
    place = numpy.frombuffer(into, numpy.uint8)
    origin = numpy.frombuffer(whole[entry.raw_offset : end], numpy.uint8)
    total = checksum(whole[: entry.raw_offset])
    for at in range(0, len(into), STRETCH):
        if not found.segment.is_whole():
            raise _cut_short(found)
        stretch = slice(at, at + STRETCH)
        total = copy_summed(place[stretch], origin[stretch], total)
    return checksum(whole[end:], total)


def _read(found: _InMemory, into: memoryview) -> int:
    """Read the tensor's bytes from the file; the checksum of the whole entry."""
    at = found.offset + found.entry.offset

    def fill(block: memoryview) -> None:
        nonlocal at
        while len(block):
            got = os.preadv(found.segment.descriptor, [block], at)
            if not got:
                raise _cut_short(found)
            at, block = at + got, block[got:]

    return take(fill, found.entry, into)


def _cut_short(found: _InMemory) -> CorruptError:
    return CorruptError(f"{found.segment.path.name} ends too early")


class Extent(Protocol):
    """How long an entry is, and where in it the tensor's bytes are."""

    @property
    def length(self) -> int:
        """Bytes of the entry."""

    @property
    def raw_offset(self) -> int:
        """Where in it the tensor's bytes begin."""

    @property
    def raw_length(self) -> int:
        """Their number."""


def _see_length(extent: Extent, into: memoryview) -> None:
    if len(into) != extent.raw_length:
        raise CorruptError(f"{extent.raw_length} bytes where the shape says {len(into)}")


def take(fill: Callable[[memoryview], None], extent: Extent, into: memoryview) -> int:
    """Fill ``into`` with the tensor's bytes of an entry that ``fill`` reads; the whole's checksum.

    Each block is summed up where it has arrived, while it is still in the processor's cache, so
    that verifying costs no second walk through memory.
    """
    _see_length(extent, into)
    around = memoryview(bytearray(extent.length - extent.raw_length))
    blocks = [into[at : at + BLOCK] for at in range(0, len(into), BLOCK)]
    total = 0
    for block in (around[: extent.raw_offset], *blocks, around[extent.raw_offset :]):
        fill(block)
        total = checksum(block, total)
    return total


def tensor_of(
    raw: memoryview, metadata: Metadata, index: MetadataIndex, sizes: Mapping[Key, torch.Size]
) -> torch.Tensor:
    """The tensor chunk that consists of these bytes."""
    properties = metadata.state_dict_metadata[index.fqn].properties  # type: ignore[union-attr]
    shape = sizes[key_of(index)]
    if shape.numel() == 0:
        return torch.empty(shape, dtype=properties.dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(properties.dtype).view(shape)
