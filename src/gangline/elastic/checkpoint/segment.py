"""A segment: one file in shared memory with one save of one rank, which outlives its writer.

The writer (a training process) and the readers (the saver, a restarted training process) share
nothing but the file. A writer locks it exclusively while it overwrites; a reader locks it shared
while it reads; the kernel releases the locks of dead processes.

Write order of a save: header WRITING, then layout and data, then header COMPLETE. A crash at any
point leaves WRITING, a damaged header, or a complete save. Readers compare the header before and
after reading, because a lock protects only the time while it is locked.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from gangline.elastic.checkpoint import header as records
from gangline.elastic.checkpoint.errors import CorruptError, MemoryShortError
from gangline.elastic.checkpoint.failpoints import pass_failpoint
from gangline.elastic.checkpoint.header import SegmentHeader, SegmentState
from gangline.elastic.checkpoint.layout import (
    PartLayout,
    align_up,
    decode_layout,
    encode_layout,
    find_layout_error,
)
from gangline.elastic.checkpoint.room import free_bytes, shortage_message
from gangline.elastic.checkpoint.sums import checksum

_OUT_OF_SPACE = {errno.ENOSPC, errno.ENOMEM, errno.EFBIG}


class Segment:
    """A segment that is open in this process. Close it, or leave it to the garbage collector."""

    def __init__(self, path: Path) -> None:
        """Open the file at ``path``.

        Raises:
            FileNotFoundError: it does not exist.
            CorruptError: it is too short to be a segment.
        """
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(self.descriptor).st_size
        if size < records.PAGE:
            os.close(self.descriptor)
            raise CorruptError(f"{path} has {size} bytes, which is too short for a segment")
        self.map = mmap.mmap(self.descriptor, size)

    def close(self) -> None:
        """Close the file. Views into its memory stay valid until they are freed."""
        with contextlib.suppress(BufferError):  # views of tensors are still alive
            self.map.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def size(self) -> int:
        return len(self.map)

    def is_file_at(self, path: Path) -> bool:
        """Return whether this is still the file at ``path``."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self.descriptor), path.stat())
        return False

    def has_full_length(self) -> bool:
        """Return whether the file still has its length; reading a truncated mapping would kill the
        process.
        """
        return os.fstat(self.descriptor).st_size >= self.size

    def read_header(self) -> SegmentHeader | None:
        """Return the header; ``None`` if no valid one is written."""
        return records.unpack_header(self.map[: records.HEADER_BYTES])

    def read_layout(self, header: SegmentHeader) -> PartLayout:
        """Read the layout that belongs to ``header``.

        Raises:
            CorruptError: it is damaged, or the file is shorter than the header says.
        """
        end = header.part_offset + header.part_bytes
        if self.size < max(end, header.total_bytes) or os.fstat(self.descriptor).st_size < end:
            raise CorruptError(f"{self.path} is shorter than its header says")
        data = self.map[records.PAGE : records.PAGE + header.layout_bytes]
        if checksum(data) != header.layout_sum:
            raise CorruptError(f"the layout in {self.path} is damaged")
        try:
            return _layout_of(data)
        except (msgspec.MsgspecError, CorruptError) as error:
            raise CorruptError(f"the layout in {self.path} cannot be read: {error}") from error

    def part(self, header: SegmentHeader) -> memoryview:
        return memoryview(self.map)[header.part_offset : header.part_offset + header.part_bytes]

    def read_seal(self, header: SegmentHeader, entries: int) -> list[int] | None:
        """Return the checksums of the entries, or ``None`` if they have not been computed yet."""
        at = header.seal_offset
        return records.unpack_seal(
            self.map[at : at + records.seal_bytes(entries)], header.generation, entries
        )

    def write_seal(self, header: SegmentHeader, sums: list[int]) -> None:
        os.pwrite(self.descriptor, records.pack_seal(header.generation, sums), header.seal_offset)

    def is_persisted(self, generation: int) -> bool:
        at = records.MARK_OFFSET
        return records.is_marked_persisted(self.map[at : at + records.MARK_BYTES], generation)

    def mark_persisted(self, generation: int) -> None:
        os.pwrite(self.descriptor, records.pack_mark(generation, True), records.MARK_OFFSET)

    def write_header(self, header: SegmentHeader) -> None:
        os.pwrite(self.descriptor, records.pack_header(header), 0)

    def write(self, at: int, data: memoryview) -> None:
        """Write bytes, which may need new pages.

        Raises:
            MemoryShortError: no pages are left.
        """
        while len(data):
            try:
                done = os.pwrite(self.descriptor, data, at)
            except OSError as error:
                if error.errno in _OUT_OF_SPACE:
                    raise _short(self.path, self.size) from error
                raise
            at, data = at + done, data[done:]

    def begin_save(self, header: SegmentHeader, layout: bytes) -> None:
        """Invalidate the current content, and write the layout of the next save."""
        self.write_header(header)
        pass_failpoint("save-begun")
        if self.map[records.PAGE : records.PAGE + len(layout)] != layout:
            os.pwrite(self.descriptor, layout, records.PAGE)
        pass_failpoint("save-layout")

    def try_lock(self, exclusive: bool) -> bool:
        """Lock the file without waiting; return whether it is locked now."""
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def reading(self) -> Iterator[bool]:
        """Lock the file shared inside the block; yield whether that succeeded."""
        taken = self.try_lock(exclusive=False)
        try:
            yield taken
        finally:
            if taken and self.descriptor >= 0:
                self.unlock()


@lru_cache(maxsize=16)
def _layout_of(data: bytes) -> PartLayout:
    """Decode a layout, with a cache: the buffers of a rank have equal layouts as long as the
    structure of the state stays the same, and the saver reads them every second.
    """
    layout = decode_layout(data)
    if wrong := find_layout_error(layout):
        raise CorruptError(wrong)
    return layout


def plan_segment(
    layout: PartLayout, *, step: int, generation: int, for_storage: bool
) -> tuple[SegmentHeader, bytes]:
    """Plan a segment: return the header at the start of a save, and the encoded layout."""
    data = encode_layout(layout)
    seal_offset = align_up(records.PAGE + len(data))
    part_offset = align_up(seal_offset + records.seal_bytes(len(layout.entries)), records.PAGE)
    total = align_up(part_offset + layout.part_bytes, records.PAGE)
    header = SegmentHeader(
        SegmentState.WRITING,
        for_storage,
        step,
        generation,
        len(data),
        checksum(data),
        seal_offset,
        part_offset,
        layout.part_bytes,
        total,
        time.time(),
    )
    return header, data


def create_segment(path: Path, size: int, reserve: bool = True) -> Segment:
    """Create an empty segment of ``size`` bytes, replacing an existing file.

    Without ``reserve`` pages are allocated as they are written by ``Segment.write``.

    Raises:
        MemoryShortError: shared memory is too small for it.
    """
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if reserve:
            # A page that cannot be allocated on access kills the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
        elif size > free_bytes(path.parent):
            raise OSError(errno.ENOSPC, "not enough free memory")
        else:
            os.ftruncate(descriptor, size)
        pass_failpoint("segment-allocated")
        fresh.rename(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        if error.errno in _OUT_OF_SPACE:
            raise _short(path, size) from error
        raise
    finally:
        os.close(descriptor)
    return Segment(path)


def _short(path: Path, size: int) -> MemoryShortError:
    return MemoryShortError(shortage_message(str(path.parent), size, free_bytes(path.parent)))
