"""The checksum of checkpoints: CRC-64/NVME, computed at the speed of the processor's cache.

Checksums of adjacent chunks combine to that of both, so that several threads can process one
tensor, each the chunk that it copies. Object stores of the S3 kind use the same checksum.
``copy_summed.c`` computes it, or the package awscrt where no C compiler has built that.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy
import numpy.typing

CHECKSUM_BLOCK = 1 << 19
"""Bytes copied and then added to the checksum while they are in a processor's cache."""
COPY_CHUNK = 1 << 22
"""Bytes that a thread copies at a time: small, so that all threads end together."""
ByteArray = numpy.typing.NDArray[numpy.uint8]
Bytes = bytes | bytearray | memoryview | ByteArray


class NativeCopy:
    """The functions of ``copy_summed.c``, if it was built for this machine."""

    WAYS = {0: "plain", 1: "narrow", 2: "wide"}
    """Variants of the C code by number: ordinary registers, and those of 128 and of 512 bits."""

    def __init__(self, path: Path) -> None:
        """Load the library. Raises OSError: it does not exist, or was built for another machine."""
        library = ctypes.CDLL(str(path))
        pointer, size, sum_type = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
        self._copy, self._sum, self._combine = library.copy_summed, library.sum_up, library.combine
        self._copy.restype = self._sum.restype = self._combine.restype = sum_type
        self._copy.argtypes = [pointer, pointer, size, sum_type, ctypes.c_int]
        self._sum.argtypes = [pointer, size, sum_type, ctypes.c_int]
        self._combine.argtypes = [sum_type, sum_type, size]
        self.best: int = library.best_way()

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
            self.best if way is None else way,
        )
        return total

    def sum(self, data: Bytes, before: int = 0, way: int | None = None) -> int:
        """Return the checksum of contiguous bytes; the GIL is released meanwhile."""
        array = numpy.frombuffer(data, numpy.uint8)
        total: int = self._sum(
            array.ctypes.data, array.nbytes, before, self.best if way is None else way
        )
        return total

    def combine(self, first: int, second: int, length: int) -> int:
        """Combine like the module's function of the same purpose."""
        total: int = self._combine(first, second, length)
        return total


def _native() -> NativeCopy | None:
    try:
        return NativeCopy(Path(__file__).with_name("copy_summed.so"))
    except OSError:
        return None


def _functions() -> tuple[Callable[[Bytes, int], int], Callable[[int, int, int], int]]:
    """Return what computes and what combines checksums."""
    if NATIVE is not None:
        return NATIVE.sum, NATIVE.combine
    try:
        from awscrt.checksums import combine_crc64nvme, crc64nvme
    except ImportError as error:
        raise ImportError(
            "checkpoints need checksums: this installation of gangline was built without a C "
            "compiler; 'pip install awscrt' provides them too"
        ) from error
    return crc64nvme, combine_crc64nvme


NATIVE = _native()
"""Takes two thirds of the time of an ordinary copy; ``None`` if it was not built."""
_SUM, _COMBINE = _functions()


def checksum(data: Bytes, before: int = 0) -> int:
    """Return the checksum of ``data``, appended to bytes with the checksum ``before``."""
    return _SUM(data, before)


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
    return _COMBINE(first, second, length)
