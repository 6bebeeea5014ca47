"""One file in shared memory that holds one save of one rank, and outlives whoever wrote it.

Writer (a training process) and readers (the saver, a restarted training process) meet only in the
file. A writer holds the file's lock exclusively while it overwrites; a reader holds it shared
while it reads; the kernel drops the locks of the dead. Order of a save: header says WRITING, bytes
are copied, header says COMPLETE. A kill at any instant leaves WRITING, a damaged header, or a
complete save.
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
from gangline.elastic.checkpoint.failpoints import reach
from gangline.elastic.checkpoint.header import Header, State
from gangline.elastic.checkpoint.layout import Layout, aligned, decode, encode, faults
from gangline.elastic.checkpoint.room import free_bytes, shortage
from gangline.elastic.checkpoint.sums import checksum

_NO_ROOM = {errno.ENOSPC, errno.ENOMEM, errno.EFBIG}


class Segment:
    """A segment that is open in this process. Close it, or leave it to the garbage collector."""

    def __init__(self, path: Path) -> None:
        """Open what lies at ``path``.

        Raises:
            FileNotFoundError: there is nothing.
            CorruptError: it is too short to be a segment.
        """
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        size = os.fstat(self.descriptor).st_size
        if size < records.PAGE:
            os.close(self.descriptor)
            raise CorruptError(f"{path} is {size} bytes long: no segment is so short")
        self.map = mmap.mmap(self.descriptor, size)

    def close(self) -> None:
        """Let go of the file. Views into it keep the memory until they are gone."""
        with contextlib.suppress(BufferError):  # views of tensors are still alive
            self.map.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def size(self) -> int:
        """Bytes of the whole file as it was opened."""
        return len(self.map)

    def is_at(self, path: Path) -> bool:
        """Whether this is still the file that lies at ``path``."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self.descriptor), path.stat())
        return False

    def is_whole(self) -> bool:
        """Whether the file is still as long as it was; to read what is gone would be fatal."""
        return os.fstat(self.descriptor).st_size >= self.size

    def header(self) -> Header | None:
        """What the segment says of itself; ``None`` when nothing valid is written."""
        return records.unpack_header(self.map[: records.HEADER_BYTES])

    def layout(self, header: Header) -> Layout:
        """Read the layout that belongs to ``header``.

        Raises:
            CorruptError: it is damaged, or the file is shorter than it should be.
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

    def part(self, header: Header) -> memoryview:
        """The bytes of the rank's part."""
        return memoryview(self.map)[header.part_offset : header.part_offset + header.part_bytes]

    def seal(self, header: Header, entries: int) -> list[int] | None:
        """The checksums of the entries, or ``None`` while nobody has computed them."""
        at = header.seal_offset
        return records.unpack_seal(
            self.map[at : at + records.seal_bytes(entries)], header.generation, entries
        )

    def put_seal(self, header: Header, sums: list[int]) -> None:
        """Keep the checksums of the save that ``header`` describes."""
        os.pwrite(self.descriptor, records.pack_seal(header.generation, sums), header.seal_offset)

    def persisted(self, generation: int) -> bool:
        """Whether the save of ``generation`` is in storage."""
        at = records.MARK_OFFSET
        return records.persisted(self.map[at : at + records.MARK_BYTES], generation)

    def mark_persisted(self, generation: int) -> None:
        """Note that the save of ``generation`` is in storage."""
        os.pwrite(self.descriptor, records.pack_mark(generation, True), records.MARK_OFFSET)

    def put_header(self, header: Header) -> None:
        """Write the header in one call."""
        os.pwrite(self.descriptor, records.pack_header(header), 0)

    def write(self, at: int, data: memoryview) -> None:
        """Put bytes there, where pages may have to be had.

        Raises:
            MemoryShortError: there are none left.
        """
        while len(data):
            try:
                done = os.pwrite(self.descriptor, data, at)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise _short(self.path, self.size) from error
                raise
            at, data = at + done, data[done:]

    def begin(self, header: Header, layout: bytes) -> None:
        """Declare what is there invalid and put the layout of what comes."""
        self.put_header(header)
        reach("save-begun")
        if self.map[records.PAGE : records.PAGE + len(layout)] != layout:
            os.pwrite(self.descriptor, layout, records.PAGE)
        reach("save-layout")

    def try_lock(self, exclusive: bool) -> bool:
        """Take the lock if nobody is in the way."""
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Give the lock back."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def reading(self) -> Iterator[bool]:
        """Hold the shared lock inside the block; says whether it was free."""
        taken = self.try_lock(exclusive=False)
        try:
            yield taken
        finally:
            if taken and self.descriptor >= 0:
                self.unlock()


@lru_cache(maxsize=16)
def _layout_of(data: bytes) -> Layout:
    """Read a layout, once: a rank's buffers have the same one for as long as the state keeps its
    form, and the saver looks at them every second.
    """
    layout = decode(data)
    if wrong := faults(layout):
        raise CorruptError(wrong)
    return layout


def place(layout: Layout, *, step: int, generation: int, wanted: bool) -> tuple[Header, bytes]:
    """Lay out a segment: the header of a save that begins, and the layout's bytes."""
    data = encode(layout)
    seal_offset = aligned(records.PAGE + len(data))
    part_offset = aligned(seal_offset + records.seal_bytes(len(layout.entries)), records.PAGE)
    total = aligned(part_offset + layout.part_bytes, records.PAGE)
    header = Header(
        State.WRITING,
        wanted,
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


def create(path: Path, size: int, reserve: bool = True) -> Segment:
    """Make an empty segment of ``size`` bytes, taking the place of what was there.

    Without ``reserve`` it gets its pages as they are written, by ``Segment.write``.

    Raises:
        MemoryShortError: shared memory has not so much left.
    """
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if reserve:
            # A page that cannot be had later would kill the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
        elif size > free_bytes(path.parent):
            raise OSError(errno.ENOSPC, "less is free")
        else:
            os.ftruncate(descriptor, size)
        reach("segment-allocated")
        fresh.rename(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        if error.errno in _NO_ROOM:
            raise _short(path, size) from error
        raise
    finally:
        os.close(descriptor)
    return Segment(path)


def _short(path: Path, size: int) -> MemoryShortError:
    return MemoryShortError(shortage(str(path.parent), size, free_bytes(path.parent)))
