"""Copies with checksums: the native code agrees with awscrt, and stays in bounds."""

import shutil
from pathlib import Path

import numpy
import pytest
from awscrt.checksums import combine_crc64nvme, crc64nvme
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.checkpoint.format import checksum as sums
from gangline.elastic.checkpoint.format.checksum import (
    ByteArray,
    NativeCopy,
    combine_checksums,
    copy_in_blocks,
)

BUILT = sums.NATIVE is not None
needs_native = pytest.mark.skipif(not BUILT, reason="native code was not built here")
GUARD = 64
"""Bytes around a destination that must not change."""
sizes = st.one_of(st.integers(0, 700), st.integers(0, 9000))


def native() -> NativeCopy:
    assert sums.NATIVE is not None
    return sums.NATIVE


def row(size: int, seed: int) -> ByteArray:
    return numpy.random.default_rng(seed).integers(0, 256, size, dtype=numpy.uint8)


def test_native_code_is_built_where_possible() -> None:
    assert BUILT or shutil.which("cc") is None


@needs_native
@pytest.mark.parametrize("way", NativeCopy.WAYS, ids=NativeCopy.WAYS.get)
@given(
    size=sizes,
    to=st.integers(0, 2 * GUARD),
    origin_at=st.integers(0, GUARD),
    before=st.integers(0, 2**64 - 1),
    seed=st.integers(0, 99),
)
def test_every_variant_gives_the_same_copy_and_checksum(
    way: int, size: int, to: int, origin_at: int, before: int, seed: int
) -> None:
    if way > native().best:
        return  # this processor does not know it
    origin = row(origin_at + size, seed)[origin_at:]
    around = numpy.full(to + size + GUARD, 7, numpy.uint8)
    place = around[to : to + size]
    expected = crc64nvme(origin.tobytes(), before)
    assert native().copy(place, origin, before, way) == expected
    assert native().sum(origin, before, way) == expected
    assert (place == origin).all()
    assert (around[:to] == 7).all()
    assert (around[to + size :] == 7).all()


@given(size=sizes, before=st.integers(0, 2**64 - 1), seed=st.integers(0, 99))
def test_without_native_code_the_checksum_is_the_same(size: int, before: int, seed: int) -> None:
    origin, place = row(size, seed), numpy.zeros(size, numpy.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "CHECKSUM_BLOCK", 100)
        assert copy_in_blocks(place, origin, before) == crc64nvme(origin.tobytes(), before)
    assert (place == origin).all()


@given(
    first=st.integers(0, 2**64 - 1), second=st.integers(0, 2**64 - 1), length=st.integers(1, 2**45)
)
def test_sums_of_adjacent_chunks_combine(first: int, second: int, length: int) -> None:
    assert combine_checksums(first, second, length) == combine_crc64nvme(first, second, length)


@needs_native
@pytest.mark.parametrize(
    ("place", "origin"),
    [
        (numpy.zeros(5, numpy.uint8), numpy.zeros(6, numpy.uint8)),
        (numpy.zeros(10, numpy.uint8)[::2], numpy.zeros(5, numpy.uint8)),
        (numpy.zeros(5, numpy.uint8), numpy.zeros(10, numpy.uint8)[::2]),
        (numpy.frombuffer(b"fixed", numpy.uint8), numpy.zeros(5, numpy.uint8)),
    ],
    ids=["lengths", "gaps in the place", "gaps in the origin", "read-only"],
)
def test_memory_that_does_not_fit_is_refused(place: ByteArray, origin: ByteArray) -> None:
    with pytest.raises(ValueError, match="one length"):
        native().copy(place, origin, 0)


def test_a_missing_or_invalid_library_raises_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        NativeCopy(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(OSError, match="text"):
        NativeCopy(tmp_path / "text.so")
