"""The checksum of checkpoints: CRC-64/NVME, at the speed of the processor's cache.

Sums of neighbouring stretches join to that of the whole, so that several threads can sum up one
tensor, each the stretch that it is copying. Object stores of the S3 kind know the same sum.
"""

import ctypes
from pathlib import Path

import numpy
import numpy.typing
from awscrt.checksums import combine_crc64nvme, crc64nvme

BLOCK = 1 << 19
"""Bytes that are copied and then summed up: they stay in a processor's own cache in between."""
STRETCH = 1 << 22
"""Bytes that a thread copies before it looks around: short, so that all threads end at about once.
"""
Bytes = numpy.typing.NDArray[numpy.uint8]


class NativeCopy:
    """``copy_summed.c``, where it was built for this processor."""

    WAYS = {1: "narrow", 2: "wide"}
    """The ways to copy, by the C code's numbers: with registers of 128 and of 512 bits."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            OSError: it is not there, is made for another machine, or knows no way on this
                processor.
        """
        library = ctypes.CDLL(str(path))
        self._copy = library.copy_summed
        self._copy.restype = ctypes.c_uint64
        pointer = ctypes.c_void_p
        self._copy.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int]
        self.best: int = library.best_way()
        if not self.best:
            raise OSError(f"{path}: this processor multiplies no polynomials")

    def copy(self, place: Bytes, origin: Bytes, before: int, way: int | None = None) -> int:
        """As ``copy_summed``; other threads may run meanwhile."""
        if not (place.nbytes == origin.nbytes and place.flags.carray and origin.flags.c_contiguous):
            raise ValueError("both must be rows of bytes of one length, and the place writable")
        total: int = self._copy(
            place.ctypes.data, origin.ctypes.data, place.nbytes, before, way or self.best
        )
        return total


def _native() -> NativeCopy | None:
    try:
        return NativeCopy(Path(__file__).with_name("copy_summed.so"))
    except OSError:
        return None


NATIVE = _native()
"""Copies and sums up in two thirds of an ordinary copy's time; ``None`` where it was not built."""


def checksum(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """The sum of ``data``, or of it behind what has the sum ``before``."""
    total: int = crc64nvme(data, before)
    return total


def copy_summed(place: Bytes, origin: Bytes, before: int = 0) -> int:
    """Copy ``origin``; the sum of what has arrived, behind what has the sum ``before``."""
    if NATIVE is not None:
        return NATIVE.copy(place, origin, before)
    return copy_in_blocks(place, origin, before)


def copy_in_blocks(place: Bytes, origin: Bytes, before: int) -> int:
    """As ``copy_summed``, without native code."""
    for at in range(0, len(place), BLOCK):
        block = place[at : at + BLOCK]
        numpy.copyto(block, origin[at : at + BLOCK])
        before = checksum(block.data, before)
    return before


def joined(first: int, second: int, length: int) -> int:
    """The sum of two stretches that lie one behind the other, ``length`` that of the second one."""
    total: int = combine_crc64nvme(first, second, length)
    return total
