"""Pre-faults shared-memory pages in a background thread (MADV_POPULATE).

The first save then does not pay for page faults.
"""

import ctypes
import threading
from collections.abc import Callable
from enum import IntEnum

from gangline.elastic.checkpoint.segment import Segment

_POPULATE_BYTES = 1 << 22
"""Bytes per call of madvise, which blocks all other mappings of the process."""


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
        """Wait for all tasks."""
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
