"""Has the pages of shared memory in the background, so that copies need not wait for them."""

import ctypes
import threading
from collections.abc import Callable
from enum import IntEnum

from gangline.elastic.checkpoint.segment import Segment

_AT_ONCE = 1 << 22
"""Bytes whose pages are had in one go; nothing else can be mapped meanwhile."""


class How(IntEnum):
    """The kernel's advice (MADV_POPULATE_READ, MADV_POPULATE_WRITE; Linux 5.14 and later).

    Pages that are there already are found by reading in a third of the time that writing takes,
    and can be written to all the same; those that are not are had by writing in two thirds.
    """

    FIND = 22
    MAKE = 23


class Background:
    """Threads that have pages."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *values: object) -> None:
        """Have ``work`` done."""
        thread = threading.Thread(
            target=work, args=values, name="gangline-checkpoint-memory", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def settle(self) -> None:
        """Wait until all is done."""
        while self._threads:
            self._threads.pop().join()


def populate(segment: Segment, how: How) -> None:
    """Have all pages of the segment without changing them; slower first copies are all it saves."""
    try:
        anchor = ctypes.c_char.from_buffer(segment.map)  # while it lives the map stays
    except (TypeError, ValueError):
        return  # it was closed meanwhile
    library, begin = ctypes.CDLL(None), ctypes.addressof(anchor)
    for at in range(0, segment.size, _AT_ONCE):
        library.madvise(
            ctypes.c_void_p(begin + at),
            ctypes.c_size_t(min(_AT_ONCE, segment.size - at)),
            ctypes.c_int(how),
        )
