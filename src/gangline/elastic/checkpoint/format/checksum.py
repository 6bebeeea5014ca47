"""The checksum of checkpoints: CRC-64/NVME, computed at the speed of the processor's cache.

Checksums of adjacent chunks combine to that of both, so that several threads can process one
tensor, each the chunk that it copies. Object stores of the S3 kind use the same checksum.
"""

import ctypes
from pathlib import Path

import numpy
import numpy.typing
from awscrt.checksums import combine_crc64nvme, crc64nvme

CHECKSUM_BLOCK = 1 << 19
"""Bytes copied and then added to the checksum while they are in a processor's cache."""
COPY_CHUNK = 1 << 22
"""Bytes that a thread copies at a time: small, so that all threads end together."""
ByteArray = numpy.typing.NDArray[numpy.uint8]


class NativeCopy:
    """The functions of ``copy_summed.c``, if it was built for this processor."""

    WAYS = {1: "narrow", 2: "wide"}
    """Variants of the C code by number: registers of 128 and of 512 bits."""

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            OSError: it does not exist, was built for another machine, or has no variant for this
                processor.
        """
        library = ctypes.CDLL(str(path))
        self._copy = library.copy_summed
        self._copy.restype = ctypes.c_uint64
        pointer = ctypes.c_void_p
        self._copy.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int]
        self.best: int = library.best_way()
        if not self.best:
            raise OSError(f"{path}: this processor has no carry-less multiplication")

    def copy(
        self, destination: ByteArray, source: ByteArray, before: int, way: int | None = None
    ) -> int:
        """Copy like the module's function of the same purpose; the GIL is released meanwhile."""
        if not (
            destination.nbytes == source.nbytes
            and destination.flags.carray
            and source.flags.c_contiguous
        ):
            raise ValueError("both must be contiguous and of one length, and the copy writable")
        total: int = self._copy(
            destination.ctypes.data,
            source.ctypes.data,
            destination.nbytes,
            before,
            way or self.best,
        )
        return total


def _native() -> NativeCopy | None:
    try:
        return NativeCopy(Path(__file__).with_name("copy_summed.so"))
    except OSError:
        return None


NATIVE = _native()
"""Takes two thirds of the time of an ordinary copy; ``None`` if it was not built."""


def checksum(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Return the checksum of ``data``, appended to bytes with the checksum ``before``."""
    total: int = crc64nvme(data, before)
    return total


def copy_with_checksum(destination: ByteArray, source: ByteArray, before: int = 0) -> int:
    """Copy ``source``; return the checksum of ``before`` followed by the copy."""
    if NATIVE is not None:
        return NATIVE.copy(destination, source, before)
    return copy_in_blocks(destination, source, before)


def copy_in_blocks(destination: ByteArray, source: ByteArray, before: int) -> int:
    """Copy and compute the checksum without native code."""
    for at in range(0, len(destination), CHECKSUM_BLOCK):
        block = destination[at : at + CHECKSUM_BLOCK]
        numpy.copyto(block, source[at : at + CHECKSUM_BLOCK])
        before = checksum(block.data, before)
    return before


def combine_checksums(first: int, second: int, length: int) -> int:
    """Return the checksum of two adjacent chunks; ``length`` is that of the second."""
    total: int = combine_crc64nvme(first, second, length)
    return total
