"""A segment: one file in shared memory with one save of one rank, which outlives its writer.

It begins with a header (content and state), a mark (written to storage or not) and a seal
(checksums of the entries). Each has its own checksum: half written at a crash, it counts as absent.

The writer (a training process) and the readers (the saver, a restarted training process) share
nothing but the file. The kernel releases the locks of dead processes.

1. A writer locks the file exclusively before it changes a byte, a reader shared while it reads.
2. A save writes header WRITING, layout and data, header COMPLETE. A crash at any point leaves
   WRITING, a damaged header, or a complete save.
3. A reader compares the header after it has the lock with the one by which it chose the segment.
   Without a lock it compares again after reading: whatever it read under one header is right.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

import msgspec

from gangline.elastic.checkpoint.errors import (
    CorruptError,
    InsecureMemoryError,
    MemoryShortError,
)
from gangline.elastic.checkpoint.failpoints import pass_failpoint
from gangline.elastic.checkpoint.format.checksum import checksum
from gangline.elastic.checkpoint.format.manifest import (
    PartLayout,
    align_up,
    find_layout_error,
)
from gangline.elastic.checkpoint.snapshot.directory import open_own, try_flock
from gangline.elastic.memory import memory_status

MAGIC = b"GANGLCK2"
PAGE = 4096
"""Size of the area for header and mark; the layout follows at this offset."""
MARK_OFFSET = 1024
"""Offset of the mark, which the saver writes; the worker writes the header."""
_HEADER = struct.Struct("<8sIIqQQQQQQQd")
_MARK = struct.Struct("<8sQI4x")
_SEAL = struct.Struct("<QQ")
_SUM = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size + _SUM.size
MARK_BYTES = _MARK.size + _SUM.size
_OUT_OF_SPACE = {errno.ENOSPC, errno.ENOMEM, errno.EFBIG}
_POPULATE_BYTES = 1 << 22
"""Bytes per call of madvise, which blocks all other mappings of the process."""


class MemoryRequest(msgspec.Struct, frozen=True):
    """The shared memory that one rank needs."""

    node: str
    folder: str
    """Folder of the buffers."""
    bytes: int
    """Bytes of all its buffers."""
    allocated_bytes: int
    """Bytes that are allocated already."""
    free_bytes: int
    """Bytes that were free before any rank of the node allocated."""
    available_bytes: int
    """Bytes that this container, or else the machine, can still allocate."""


def memory_request(node: str, folder: Path, size: int, allocated: int) -> MemoryRequest:
    """Describe what this rank needs; call it while no rank of the node allocates."""
    return MemoryRequest(
        node, str(folder), size, allocated, free_bytes(folder), memory_status().available_bytes
    )


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def check_capacity(requests: Sequence[MemoryRequest]) -> None:
    """Check that each node has the memory that its ranks need; all ranks get the same result.

    A rank alone would count free memory that the other ranks of its node need too. Raises
    MemoryShortError: some node does not.
    """
    nodes: dict[str, list[MemoryRequest]] = {}
    for request in requests:
        nodes.setdefault(request.node, []).append(request)
    for on_node in nodes.values():
        more = _more(on_node)
        free = min(request.free_bytes for request in on_node)
        if more > free:
            total = sum(request.bytes for request in on_node)
            of = (
                f" ({total / 1e6:.0f} MB in all for {len(on_node)} ranks)"
                if len(on_node) > 1
                else ""
            )
            host = on_node[0].node.partition("/")[0]
            raise MemoryShortError(
                shortage_message(f"{on_node[0].folder} of {host}", more, free, of)
            )


def memory_warning(requests: Sequence[MemoryRequest], node: str) -> str:
    """Return a warning if the buffers fit, but memory for them is short; else an empty string."""
    on_node = [request for request in requests if request.node == node]
    more, available = _more(on_node), min(request.available_bytes for request in on_node)
    if more <= available:
        return ""
    return (
        f"checkpoints need {more / 1e6:.0f} MB more memory, and only {available / 1e6:.0f} "
        "MB are available: files in /dev/shm count as memory of the container, which may "
        "be killed for it; raise its memory limit, or use fewer buffers"
    )


def _more(requests: Sequence[MemoryRequest]) -> int:
    return sum(max(0, request.bytes - request.allocated_bytes) for request in requests)


def shortage_message(where: str, more: int, free: int, of: str = "") -> str:
    return (
        f"checkpoints need {more / 1e6:.0f} MB more in {where}{of}, where {free / 1e6:.0f} MB are "
        "free; in a pod, mount an emptyDir with medium: Memory, and a sizeLimit that holds all "
        "buffers, at /dev/shm, or use fewer buffers"
    )


class SegmentState(IntEnum):
    """Whether a segment holds a checkpoint."""

    WRITING = 1
    COMPLETE = 2
    CORRUPT = 3
    """The content was found damaged, and is not used before the next save overwrites it."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Description of a segment's content; the file has the fields in this order."""

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
    return _with_sum(_HEADER.pack(MAGIC, *astuple(header)))


def unpack_header(data: bytes | memoryview) -> SegmentHeader | None:
    """Read a header; return ``None`` if there is none or it is damaged."""
    body = _without_sum(data, _HEADER.size)
    if body is None or not body.startswith(MAGIC):
        return None
    _, state, for_storage, *rest = _HEADER.unpack(body)
    return SegmentHeader(SegmentState(state), bool(for_storage), *rest)


def _with_sum(body: bytes) -> bytes:
    return body + _SUM.pack(checksum(body))


def _without_sum(record: bytes | memoryview, size: int) -> bytes | None:
    """Return the first ``size`` bytes; ``None`` unless their checksum follows."""
    body = bytes(record[:size])
    if len(record) < size + _SUM.size or _SUM.unpack_from(record, size)[0] != checksum(body):
        return None
    return body


def is_marked_persisted(data: bytes | memoryview, generation: int) -> bool:
    """Return whether the mark says that the save of ``generation`` is in storage."""
    body = _without_sum(data, _MARK.size)
    return body is not None and _MARK.unpack(body) == (MAGIC, generation, True)


def seal_bytes(entries: int) -> int:
    return _SEAL.size + entries * _SUM.size + _SUM.size


def unpack_seal(data: bytes | memoryview, generation: int, entries: int) -> list[int] | None:
    """Read the checksums of the save of ``generation``; return ``None`` if there are none."""
    body = _without_sum(data, _SEAL.size + entries * _SUM.size)
    if body is None or _SEAL.unpack_from(body) != (generation, entries):
        return None
    return list(struct.unpack_from(f"<{entries}Q", body, _SEAL.size))


class Segment:
    """A segment that is open in this process. Close it, or leave it to the garbage collector."""

    def __init__(self, path: Path) -> None:
        """Open the file at ``path``.

        Raises:
            FileNotFoundError: it does not exist.
            CorruptError: it is too short to be a segment, or another user can change it.
        """
        self.path = path
        try:
            self.descriptor = open_own(path, os.O_RDWR)
        except InsecureMemoryError as error:
            raise CorruptError(str(error)) from error
        size = os.fstat(self.descriptor).st_size
        if size < PAGE:
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
        """Return whether the file has its length: reading a truncated mapping kills the process."""
        return os.fstat(self.descriptor).st_size >= self.size

    def read_header(self) -> SegmentHeader | None:
        """Return the header; ``None`` if no valid one is written."""
        return unpack_header(self.map[:HEADER_BYTES])

    def read_layout(self, header: SegmentHeader) -> PartLayout:
        """Read the layout that belongs to ``header``.

        Raises CorruptError: it is damaged, or the file is shorter than the header says.
        """
        end = header.part_offset + header.part_bytes
        if self.size < max(end, header.total_bytes) or os.fstat(self.descriptor).st_size < end:
            raise CorruptError(f"{self.path} is shorter than its header says")
        data = self.map[PAGE : PAGE + header.layout_bytes]
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
        return unpack_seal(self.map[at : at + seal_bytes(entries)], header.generation, entries)

    def write_seal(self, header: SegmentHeader, sums: list[int]) -> None:
        body = _SEAL.pack(header.generation, len(sums)) + struct.pack(f"<{len(sums)}Q", *sums)
        os.pwrite(self.descriptor, _with_sum(body), header.seal_offset)

    def is_persisted(self, generation: int) -> bool:
        return is_marked_persisted(self.map[MARK_OFFSET : MARK_OFFSET + MARK_BYTES], generation)

    def mark_persisted(self, generation: int) -> None:
        record = _with_sum(_MARK.pack(MAGIC, generation, True))
        os.pwrite(self.descriptor, record, MARK_OFFSET)

    def write_header(self, header: SegmentHeader) -> None:
        os.pwrite(self.descriptor, pack_header(header), 0)

    def write(self, at: int, data: memoryview) -> None:
        """Write bytes, which may need new pages. Raises MemoryShortError: no pages are left."""
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
        # The header first: from here on the save that was in this buffer is gone, which is why the
        # ring never chooses the newest complete one.
        self.write_header(header)
        pass_failpoint("save-begun")
        if self.map[PAGE : PAGE + len(layout)] != layout:
            os.pwrite(self.descriptor, layout, PAGE)
        pass_failpoint("save-layout")

    def try_lock(self, exclusive: bool) -> bool:
        """Lock the file without waiting; return whether it is locked now."""
        return try_flock(self.descriptor, exclusive)

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
    layout = msgspec.msgpack.decode(data, type=PartLayout)
    if wrong := find_layout_error(layout):
        raise CorruptError(wrong)
    return layout


def plan_segment(
    layout: PartLayout, *, step: int, generation: int, for_storage: bool
) -> tuple[SegmentHeader, bytes]:
    """Plan a segment: return the header at the start of a save, and the encoded layout."""
    data = msgspec.msgpack.encode(layout)
    seal_offset = align_up(PAGE + len(data))
    part_offset = align_up(seal_offset + seal_bytes(len(layout.entries)), PAGE)
    total = align_up(part_offset + layout.part_bytes, PAGE)
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

    Without ``reserve`` pages are allocated as they are written by ``Segment.write``. Raises
    MemoryShortError: shared memory is too small for it.
    """
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = open_own(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        if reserve:
            # A page that cannot be allocated on access kills the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
        elif size > free_bytes(path.parent):
            raise OSError(errno.ENOSPC, "not enough free memory")
        else:
            os.ftruncate(descriptor, size)
        pass_failpoint("segment-allocated")
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in _OUT_OF_SPACE:
            raise _short(path, size) from error
        raise
    finally:
        os.close(descriptor)
    return Segment(path)


def _short(path: Path, size: int) -> MemoryShortError:
    return MemoryShortError(shortage_message(str(path.parent), size, free_bytes(path.parent)))


class PopulateAdvice(IntEnum):
    """The kernel's advice (MADV_POPULATE_READ, MADV_POPULATE_WRITE; Linux 5.14 and later).

    Existing pages are mapped by a read fault in a third of the time of a write fault, and can be
    written afterwards. Missing pages are allocated by a write fault in two thirds of the time.
    """

    READ = 22
    WRITE = 23


class BackgroundTasks:
    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *values: object) -> None:
        thread = threading.Thread(
            target=work, args=values, name="gangline-checkpoint-memory", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def wait(self) -> None:
        while self._threads:
            self._threads.pop().join()


def prefault_segment(segment: Segment, how: PopulateAdvice) -> None:
    """Fault in all pages of the segment without changing them.

    Failures are ignored: they only make the first copy slower.
    """
    try:
        anchor = ctypes.c_char.from_buffer(segment.map)  # keeps the mapping alive
    except (TypeError, ValueError):
        return  # the mapping was closed meanwhile
    library, begin = ctypes.CDLL(None), ctypes.addressof(anchor)
    for at in range(0, segment.size, _POPULATE_BYTES):
        library.madvise(
            ctypes.c_void_p(begin + at),
            ctypes.c_size_t(min(_POPULATE_BYTES, segment.size - at)),
            ctypes.c_int(how),
        )
