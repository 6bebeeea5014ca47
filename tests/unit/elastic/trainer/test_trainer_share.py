"""Splitting a global batch: all records once, with weights that add up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.trainer.share import Share, ShareError


@given(world=st.integers(1, 64), more=st.integers(0, 500), micro=st.integers(1, 70))
def test_shares_cover_the_batch_and_weights_add_up(world: int, more: int, micro: int) -> None:
    total = world + more
    shares = [Share(total, world, rank, micro) for rank in range(world)]
    places = [p for one in shares for p in range(one.start, one.start + one.records)]
    assert places == list(range(total))
    for one in shares:
        assert sum(one.micro_batches) == one.records
        assert max(one.micro_batches) <= micro
        assert max(one.micro_batches) - min(one.micro_batches) <= 1
    weights = [one.weight(size) for one in shares for size in one.micro_batches]
    assert math.fsum(weights) / world == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((2, 3, 0, 1), "leaves some of 3"),
        ((4, 2, 2, 1), "rank 2"),
        ((4, 2, 0, 0), "at least one record"),
    ],
)
def test_invalid_shares_are_refused(shares: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ShareError, match=message):
        Share(*shares)
