"""Memory goes back to the system after a load.

glibc keeps freed memory: in one arena per thread, in blocks below the size from which it maps
memory (a size that grows with each freed block), and between blocks that are still in use. So the
number of arenas and that size are fixed, and free memory is given back when the process has grown.
"""

import asyncio
import ctypes
import gc
import os
from pathlib import Path

MAX_ARENAS = 2
MAP_FROM_BYTES = 128 << 10
"""Blocks of this size and above are mapped: they are given back as soon as they are freed."""
CHECK_INTERVAL_S = 10.0
GROWTH_BYTES = 16 << 20
"""Growth since the last trim from which the next one is worth its time."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h of glibc


def _c_library() -> ctypes.CDLL | None:
    """Return glibc; None on systems with another library."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None


def configure_allocator() -> None:
    """Limit what the allocator retains. Call this before threads are started."""
    if (library := _c_library()) is not None:
        library.mallopt(_M_ARENA_MAX, MAX_ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, MAP_FROM_BYTES)


def resident_bytes() -> int:
    """Return the resident set of this process; 0 on systems without ``/proc``."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


async def release_memory_forever() -> None:
    """Give free memory back whenever the process has grown and does not grow further."""
    library = _c_library()
    if library is None:
        return
    settled = previous = resident_bytes()
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        current = resident_bytes()
        if current > settled + GROWTH_BYTES and current <= previous + GROWTH_BYTES:
            # Failed requests leave cycles of exceptions and frames, which hold bodies.
            gc.collect(1)
            await asyncio.to_thread(library.malloc_trim, 0)
            settled = current = resident_bytes()
        settled = min(settled, current)
        previous = current
