"""Records at the start of a segment: its content, its state and its checksums.

Each record carries its own checksum, so that a record which was half written at a crash counts as
absent. A save writes the header last: before that, the segment holds no checkpoint.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from gangline.elastic.checkpoint.sums import checksum

MAGIC = b"GANGLCK2"
PAGE = 4096
"""Size of the area for header and mark; the layout follows at this offset."""
MARK_OFFSET = 1024
"""Offset of the mark, which the saver writes; the worker writes the header."""
_HEADER = struct.Struct("<8sIIqQQQQQQQd")
_MARK = struct.Struct("<8sQI4x")
_SEAL = struct.Struct("<QQ")
_SUM = struct.Struct("<Q")


class SegmentState(IntEnum):
    """Whether a segment holds a checkpoint."""

    WRITING = 1
    COMPLETE = 2
    CORRUPT = 3
    """The content was found damaged, and is not used before the next save overwrites it."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Description of a segment's content."""

    state: SegmentState
    for_storage: bool
    """True if the saver shall write it to storage."""
    step: int
    generation: int
    """Number of this save of this rank, counted over all its segments."""
    layout_bytes: int
    layout_sum: int
    seal_offset: int
    part_offset: int
    part_bytes: int
    total_bytes: int
    saved_at: float
    """Seconds since the epoch on the writer's clock, for display only."""


def pack_header(header: SegmentHeader) -> bytes:
    body = _HEADER.pack(
        MAGIC,
        header.state,
        header.for_storage,
        header.step,
        header.generation,
        header.layout_bytes,
        header.layout_sum,
        header.seal_offset,
        header.part_offset,
        header.part_bytes,
        header.total_bytes,
        header.saved_at,
    )
    return body + _SUM.pack(checksum(body))


HEADER_BYTES = _HEADER.size + _SUM.size


def unpack_header(data: bytes | memoryview) -> SegmentHeader | None:
    """Read a header; return ``None`` if there is none or it is damaged."""
    if len(data) < HEADER_BYTES:
        return None
    body = bytes(data[: _HEADER.size])
    if _SUM.unpack_from(data, _HEADER.size)[0] != checksum(body) or not body.startswith(MAGIC):
        return None
    _, state, for_storage, *rest = _HEADER.unpack(body)
    return SegmentHeader(SegmentState(state), bool(for_storage), *rest)


def pack_mark(generation: int, persisted: bool) -> bytes:
    body = _MARK.pack(MAGIC, generation, persisted)
    return body + _SUM.pack(checksum(body))


MARK_BYTES = _MARK.size + _SUM.size


def is_marked_persisted(data: bytes | memoryview, generation: int) -> bool:
    """Return whether the mark says that the save of ``generation`` is in storage."""
    body = bytes(data[: _MARK.size])
    if len(data) < MARK_BYTES or _SUM.unpack_from(data, _MARK.size)[0] != checksum(body):
        return False
    magic, marked, done = _MARK.unpack(body)
    return bool(magic == MAGIC and marked == generation and done)


def seal_bytes(entries: int) -> int:
    return _SEAL.size + entries * _SUM.size + _SUM.size


def pack_seal(generation: int, sums: Sequence[int]) -> bytes:
    body = _SEAL.pack(generation, len(sums)) + struct.pack(f"<{len(sums)}Q", *sums)
    return body + _SUM.pack(checksum(body))


def unpack_seal(data: bytes | memoryview, generation: int, entries: int) -> list[int] | None:
    """Read the checksums of the save of ``generation``; return ``None`` if there are none."""
    size = seal_bytes(entries)
    body = bytes(data[: size - _SUM.size])
    if len(data) < size or _SUM.unpack_from(data, len(body))[0] != checksum(body):
        return None
    sealed, count = _SEAL.unpack_from(body)
    if sealed != generation or count != entries:
        return None
    return list(struct.unpack_from(f"<{entries}Q", body, _SEAL.size))
