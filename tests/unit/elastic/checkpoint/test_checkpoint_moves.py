"""Copies of tensors into their places by several threads, bit by bit."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.elastic.checkpoint import moves
from gangline.elastic.checkpoint.envelope import is_plain
from gangline.elastic.checkpoint.moves import Copier, Pair, Race, Way

sys.path.insert(0, str(Path(__file__).parent))
from checkpoint_states import equal, tensors


class Marked(torch.Tensor):
    """A kind of tensor of its own, whose bytes are nobody's business."""


def favouring(way: Way) -> Race:
    """A race that is over, and that this way has won."""
    return Race({each: [float(each is not way)] * moves.TRIALS for each in Way})


@pytest.fixture(params=Way)
def copier(request: pytest.FixtureRequest) -> Iterator[Copier]:
    threads = torch.get_num_threads()
    one = Copier(favouring(request.param))
    yield one
    one.close()
    torch.set_num_threads(threads)


def place_for(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def large_ones() -> list[torch.Tensor]:
    """Longer than a thread copies at once, and of every form that PyTorch has to copy."""
    count = 2 * moves.STRETCH // 4 + 7
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
def test_every_tensor_arrives_whatever_its_form(copier: Copier, threads: int) -> None:
    torch.set_num_threads(threads)
    pairs: list[Pair] = [(place_for(one), one.detach()) for one in large_ones()]
    told: list[bool] = []
    copier.copy(pairs, lambda: told.append(True))
    copier.copy(pairs, lambda: told.append(True))
    assert told == [True, True]
    for place, tensor in pairs:
        assert torch.equal(place, tensor)


@settings(max_examples=100, deadline=None)
@given(st.lists(tensors().filter(lambda one: one.numel() > 0), max_size=8), st.integers(1, 3))
def test_random_tensors_arrive_in_stretches_of_any_length(
    some: list[torch.Tensor], threads: int
) -> None:
    pairs: list[Pair] = [(place_for(one), one) for one in some]
    copier, known = Copier(favouring(Way.C_LIBRARY)), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "SMALL", 1)
        patch.setattr(moves, "STRETCH", 3)
        torch.set_num_threads(threads)
        copier.copy(pairs, lambda: None)
    copier.close()
    torch.set_num_threads(known)
    for place, tensor in pairs:
        assert equal(place, tensor)


def test_another_type_is_converted_rather_than_copied_as_bytes(copier: Copier) -> None:
    numbers = torch.arange(100_000, dtype=torch.int32)
    place = torch.zeros(100_000, dtype=torch.float32)
    copier.copy([(place, numbers)], lambda: None)
    assert torch.equal(place, numbers.to(torch.float32))


def test_nothing_is_written_any_more_once_a_copy_has_failed(copier: Copier) -> None:
    torch.set_num_threads(3)
    pairs: list[Pair] = [(place_for(one), one.detach()) for one in large_ones()[:2]]

    def fail() -> None:
        raise RuntimeError("half")

    with pytest.raises(RuntimeError, match="half"):
        copier.copy(pairs, fail)
    for place, _ in pairs:
        place.zero_()
    copier.close()  # ends the threads, and with them whatever they were doing
    assert not any(place.any() for place, _ in pairs)
    copier.copy(pairs, lambda: None)
    assert all(torch.equal(place, tensor) for place, tensor in pairs)


def test_only_tensors_whose_bytes_are_their_value_are_plain() -> None:
    square = torch.randn(3, 3)
    assert is_plain(square)
    assert is_plain(square[1:])
    assert is_plain(torch.nn.Parameter(square))
    negated = torch.complex(square, square).conj().imag  # minus the bytes that lie there
    assert not any(
        is_plain(one)
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


def test_both_ways_are_tried_in_turns_and_the_faster_one_stays() -> None:
    race, chosen = Race(), list[Way]()
    seconds = {Way.PYTORCH: iter([9.0, 3.0, 8.0]), Way.C_LIBRARY: iter([4.0, 5.0, 4.0])}
    for _ in range(2 * moves.TRIALS):
        way = race.choose()
        chosen.append(way)
        race.ran(way, 1000, next(seconds[way]))
    assert chosen == [Way.PYTORCH, Way.C_LIBRARY] * moves.TRIALS
    assert race.choose() is Way.PYTORCH, "its quickest trial was the quickest"
    race.ran(Way.PYTORCH, 1000, 100.0)
    assert race.choose() is Way.PYTORCH, "a busy moment later changes nothing"


def test_a_copy_without_long_tensors_says_nothing_about_the_ways() -> None:
    race = Race()
    Copier(race).copy([(torch.zeros(3), torch.ones(3))], lambda: None)
    assert race == Race()
