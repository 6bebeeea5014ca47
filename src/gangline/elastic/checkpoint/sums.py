"""The checksum of checkpoints: CRC-64/NVME, at the speed of the processor's cache.

Sums of neighbouring stretches join to that of the whole, so that several threads can sum up one
tensor, each the stretch that it has just copied. Object stores of the S3 kind know the same sum.
"""

import numpy
import numpy.typing
from awscrt.checksums import combine_crc64nvme, crc64nvme

BLOCK = 1 << 19
"""Bytes that are copied and then summed up: they stay in a processor's own cache in between."""
STRETCH = 1 << 22
"""Bytes that a thread copies before it looks around: short, so that all threads end at about once.
"""
Bytes = numpy.typing.NDArray[numpy.uint8]


def checksum(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """The sum of ``data``, or of it behind what has the sum ``before``."""
    total: int = crc64nvme(data, before)
    return total


def copy_summed(place: Bytes, origin: Bytes, before: int = 0) -> int:
    """Copy ``origin``; the sum of what has arrived, behind what has the sum ``before``."""
    for at in range(0, len(place), BLOCK):
        block = place[at : at + BLOCK]
        numpy.copyto(block, origin[at : at + BLOCK])
        before = checksum(block.data, before)
    return before


def joined(first: int, second: int, length: int) -> int:
    """The sum of two stretches that lie one behind the other, ``length`` that of the second one."""
    total: int = combine_crc64nvme(first, second, length)
    return total
