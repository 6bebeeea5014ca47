"""The records at the start of a segment: what is in it, whether it may be used, and its checksums.

Each record carries its own checksum, so that one that was half written when its writer was killed
counts as absent. The header is written last in a save: before it, there is no checkpoint.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from gangline.elastic.checkpoint.sums import checksum

MAGIC = b"GANGLCK2"
PAGE = 4096
"""The header's and the mark's place; the layout follows at this offset."""
MARK_OFFSET = 1024
"""Where the mark lies: written by the saver, not by the worker."""
_HEADER = struct.Struct("<8sIIqQQQQQQQd")
_MARK = struct.Struct("<8sQI4x")
_SEAL = struct.Struct("<QQ")
_SUM = struct.Struct("<Q")


class State(IntEnum):
    """Whether a segment holds a checkpoint."""

    WRITING = 1
    COMPLETE = 2
    CORRUPT = 3
    """It was found damaged; kept from use until it is written anew."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a segment holds."""

    state: State
    wanted: bool
    """Whether it is to be written to storage."""
    step: int
    generation: int
    """Counts the saves of this rank, over all of its segments."""
    layout_bytes: int
    layout_sum: int
    seal_offset: int
    part_offset: int
    part_bytes: int
    total_bytes: int
    saved_at: float
    """Seconds since the epoch on the writer's clock; for people only."""


def pack_header(header: Header) -> bytes:
    """The header's bytes, with their checksum."""
    body = _HEADER.pack(
        MAGIC,
        header.state,
        header.wanted,
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


def unpack_header(data: bytes | memoryview) -> Header | None:
    """Read a header; ``None`` when there is none or it is damaged."""
    if len(data) < HEADER_BYTES:
        return None
    body = bytes(data[: _HEADER.size])
    if _SUM.unpack_from(data, _HEADER.size)[0] != checksum(body) or not body.startswith(MAGIC):
        return None
    _, state, wanted, *rest = _HEADER.unpack(body)
    return Header(State(state), bool(wanted), *rest)


def pack_mark(generation: int, persisted: bool) -> bytes:
    """The mark's bytes: whether the save of ``generation`` has been written to storage."""
    body = _MARK.pack(MAGIC, generation, persisted)
    return body + _SUM.pack(checksum(body))


MARK_BYTES = _MARK.size + _SUM.size


def persisted(data: bytes | memoryview, generation: int) -> bool:
    """Whether the mark says that the save of ``generation`` is in storage."""
    body = bytes(data[: _MARK.size])
    if len(data) < MARK_BYTES or _SUM.unpack_from(data, _MARK.size)[0] != checksum(body):
        return False
    magic, marked, done = _MARK.unpack(body)
    return bool(magic == MAGIC and marked == generation and done)


def seal_bytes(entries: int) -> int:
    """How long the seal of so many entries is."""
    return _SEAL.size + entries * _SUM.size + _SUM.size


def pack_seal(generation: int, sums: Sequence[int]) -> bytes:
    """The seal's bytes: the checksum of each entry of the save of ``generation``."""
    body = _SEAL.pack(generation, len(sums)) + struct.pack(f"<{len(sums)}Q", *sums)
    return body + _SUM.pack(checksum(body))


def unpack_seal(data: bytes | memoryview, generation: int, entries: int) -> list[int] | None:
    """Read the checksums of the save of ``generation``; ``None`` when it is not sealed."""
    size = seal_bytes(entries)
    body = bytes(data[: size - _SUM.size])
    if len(data) < size or _SUM.unpack_from(data, len(body))[0] != checksum(body):
        return None
    sealed, count = _SEAL.unpack_from(body)
    if sealed != generation or count != entries:
        return None
    return list(struct.unpack_from(f"<{entries}Q", body, _SEAL.size))
