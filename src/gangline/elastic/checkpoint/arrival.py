"""Receives a segment from a peer: one thread reads, another computes checksums and writes.

Blocks are read into buffers that stay in a processor's cache and are written to the segment with
``pwrite``: its pages need not be mapped and zeroed first. Measured with 524 MB over loopback on two
cores: 0.62 s into a mapping, 0.46 s with ``pwrite``, 0.38 s with two threads, 0.17 s when the bytes
are discarded.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from gangline.elastic.checkpoint.errors import CorruptError
from gangline.elastic.checkpoint.header import PAGE, SegmentHeader, SegmentState
from gangline.elastic.checkpoint.layout import LayoutEntry, PartLayout
from gangline.elastic.checkpoint.segment import Segment
from gangline.elastic.checkpoint.sums import CHECKSUM_BLOCK, checksum

_BLOCKS = 4
"""Number of blocks that the reader may be ahead of the writer."""


class ReadableStream(Protocol):
    """A stream of bytes from a peer."""

    def readinto(self, place: memoryview, /) -> int | None:
        """Read some bytes into ``place``; return their number, 0 at the end."""


@dataclass(frozen=True, slots=True)
class ReceivedSegment:
    """Content of a segment that was received completely."""

    header: SegmentHeader
    layout: PartLayout
    sums: list[int]
    """Checksums of the entries as they were received."""


def receive_segment(stream: ReadableStream, segment: Segment, size: int) -> ReceivedSegment:
    """Read a segment of ``size`` bytes into ``segment``, which has this size and no content yet.

    Raises:
        CorruptError: the bytes are no segment, or ended early.
        MemoryShortError: shared memory is too small for it.
        OSError: the connection broke.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="gangline-checkpoint-arrival") as writer:
        incoming = _Incoming(stream, segment, size, writer)
        try:
            header, layout = _read_head(incoming)
        except CorruptError:
            incoming.take(size)  # otherwise the sender sees a reset and not the reason
            raise
        sums = _EntryChecksums(layout.entries)
        incoming.take(header.part_offset + header.part_bytes, sums.add)
        incoming.take(size)
    return ReceivedSegment(header, layout, sums.found)


class _Incoming:
    def __init__(
        self, stream: ReadableStream, segment: Segment, size: int, writer: ThreadPoolExecutor
    ) -> None:
        self.segment, self.size, self.at = segment, size, 0
        self._stream, self._writer = stream, writer
        self._free = deque(memoryview(bytearray(CHECKSUM_BLOCK)) for _ in range(_BLOCKS))

    def take(self, end: int, on_block: Callable[[memoryview], None] = lambda _: None) -> None:
        """Receive bytes up to ``end``. The writer thread passes each block to ``look``."""
        busy: deque[Future[memoryview]] = deque()
        end = min(end, self.size)  # a wrong header may name more
        while self.at < end:
            if not self._free:
                self._free.append(busy.popleft().result())
            block = self._free.popleft()
            length = self._fill(block[: end - self.at])
            busy.append(self._writer.submit(self._put, self.at, block, length, on_block))
            self.at += length
        self._free.extend(written.result() for written in busy)

    def _fill(self, place: memoryview) -> int:
        length = len(place)
        while len(place):
            got = self._stream.readinto(place)
            if not got:
                raise CorruptError("the peer closed the connection in the middle of a segment")
            place = place[got:]
        return length

    def _put(
        self, at: int, block: memoryview, length: int, on_block: Callable[[memoryview], None]
    ) -> memoryview:
        on_block(block[:length])
        self.segment.write(at, block[:length])
        return block


def _read_head(incoming: _Incoming) -> tuple[SegmentHeader, PartLayout]:
    incoming.take(PAGE)
    header = incoming.segment.read_header()
    if header is None or header.state is not SegmentState.COMPLETE:
        raise CorruptError("the received segment has no valid header")
    incoming.take(header.part_offset)
    return header, incoming.segment.read_layout(header)


class _EntryChecksums:
    """Checksums of adjacent entries, computed from blocks of any size."""

    def __init__(self, entries: list[LayoutEntry]) -> None:
        self.found = [0] * len(entries)
        self._entries, self._number, self._at = entries, 0, 0

    def add(self, block: memoryview) -> None:
        begin, self._at = self._at, self._at + len(block)
        while self._number < len(self._entries):
            entry = self._entries[self._number]
            end = entry.offset + entry.length
            piece = block[max(entry.offset - begin, 0) : min(end, self._at) - begin]
            self.found[self._number] = checksum(piece, self.found[self._number])
            if end > self._at:
                return
            self._number += 1
