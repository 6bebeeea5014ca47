"""Copies of tensors to their destinations by several threads, bit by bit, and their checksums."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.checkpoint.format import checksum as sums
from gangline.elastic.checkpoint.format.checksum import checksum
from gangline.elastic.checkpoint.format.torch_framing import is_plain_memory, tensor_bytes
from gangline.elastic.checkpoint.snapshot import copy
from gangline.elastic.checkpoint.snapshot.copy import TensorCopier, TensorDestination, TensorMove
from unit.elastic.checkpoint.checkpoint_states import equal, tensors


class Marked(torch.Tensor):
    """A tensor subclass, whose memory must not be copied directly."""


@pytest.fixture(params=["native", "python"], autouse=True, scope="module")
def code(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(sums, "NATIVE", None)
        elif sums.NATIVE is None:
            pytest.skip("native code was not built here")
        yield


@pytest.fixture
def copier() -> Iterator[TensorCopier]:
    threads = torch.get_num_threads()
    one = TensorCopier()
    yield one
    one.close()
    torch.set_num_threads(threads)


def place_for(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> TensorDestination:
    place = torch.zeros(tensor.shape, dtype=dtype or tensor.dtype)
    return TensorDestination(place, tensor_bytes(place))


def large_ones() -> list[torch.Tensor]:
    """Tensors longer than a chunk, and of every form that PyTorch has to copy."""
    count = 2 * copy.COPY_CHUNK // 4 + 7
    row = torch.randn(count)
    square = torch.randn(300, 300)
    return [
        row,
        row[3:],
        row[::2],
        square.t(),
        square.t()[1:],
        torch.complex(square, square).conj(),
        torch.nn.Parameter(square),
        square.as_subclass(Marked),
        torch.randint(0, 256, (count,), dtype=torch.uint8),
        torch.randn(5),
    ]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_tensor_of_every_layout_is_copied(copier: TensorCopier, threads: int) -> None:
    torch.set_num_threads(threads)
    work: list[TensorMove] = [(place_for(one), one.detach()) for one in large_ones()]
    calls: list[bool] = []
    for _ in range(2):
        taken = copier.copy(work, lambda: calls.append(True)).sums
        assert taken == [checksum(place.raw) for place, _ in work]
    assert calls == [True, True]
    for place, tensor in work:
        assert torch.equal(place.tensor, tensor)


@given(st.lists(tensors().filter(lambda one: one.numel() > 0), max_size=8), st.integers(1, 3))
def test_random_tensors_arrive_in_chunks_of_any_length(
    some: list[torch.Tensor], threads: int
) -> None:
    work: list[TensorMove] = [(place_for(one), one) for one in some]
    copier, threads_before = TensorCopier(), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy, "MIN_PARALLEL_BYTES", 1)
        patch.setattr(copy, "COPY_CHUNK", 5)
        patch.setattr(sums, "CHECKSUM_BLOCK", 3)
        torch.set_num_threads(threads)
        taken = copier.copy(work, lambda: None).sums
    copier.close()
    torch.set_num_threads(threads_before)
    assert taken == [checksum(place.raw) for place, _ in work]
    for place, tensor in work:
        assert equal(place.tensor, tensor)


def test_another_type_is_converted_rather_than_copied_as_bytes(copier: TensorCopier) -> None:
    numbers = torch.arange(100_000, dtype=torch.int32)
    place = place_for(numbers, torch.float32)
    taken = copier.copy([(place, numbers)], lambda: None).sums
    assert torch.equal(place.tensor, numbers.to(torch.float32))
    assert taken == [checksum(place.raw)]


def test_checksum_is_of_the_copy_even_if_the_tensor_changes(copier: TensorCopier) -> None:
    tensor = torch.zeros(copy.COPY_CHUNK)
    place = place_for(tensor)
    taken = copier.copy([(place, tensor)], lambda: tensor.add_(1.0)).sums
    tensor.add_(1.0)
    assert taken == [checksum(place.raw)]


def test_nothing_is_written_after_a_copy_failed(copier: TensorCopier) -> None:
    torch.set_num_threads(3)
    work: list[TensorMove] = [(place_for(one), one.detach()) for one in large_ones()[:2]]

    def fail() -> None:
        raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        copier.copy(work, fail)
    for place, _ in work:
        place.tensor.zero_()
    copier.close()  # ends the threads, and with them whatever they were doing
    assert not any(place.tensor.any() for place, _ in work)
    copier.copy(work, lambda: None)
    assert all(torch.equal(place.tensor, tensor) for place, tensor in work)


def test_a_copy_that_fails_in_another_thread_fails(copier: TensorCopier) -> None:
    torch.set_num_threads(2)
    tensor = torch.zeros(copy.COPY_CHUNK)  # four stretches
    work: list[TensorMove] = [(place_for(tensor), tensor)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy, "copy_with_checksum", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            copier.copy(work, lambda: None)


def test_only_tensors_whose_memory_is_their_value_are_plain() -> None:
    square = torch.randn(3, 3)
    assert is_plain_memory(square)
    assert is_plain_memory(square[1:])
    assert is_plain_memory(torch.nn.Parameter(square))
    negated = torch.complex(square, square).conj().imag  # minus the bytes that lie there
    assert not any(
        is_plain_memory(one)
        for one in [
            square.t(),
            square.to_sparse(),
            torch.empty(3, device="meta"),
            torch.complex(square, square).conj(),
            negated,
            torch._efficientzerotensor(3),
            square.as_subclass(Marked),
        ]
    )


def test_checksum_is_crc64_nvme() -> None:
    assert checksum(b"123456789") == 0xAE8B14860A799888  # the catalogue's check value
