"""PyTorch: DistributedDataParallel over gloo, one master and two workers."""

import pytest

from frameworks.training import ACCURACY, Training


@pytest.mark.timeout(600)
async def test_a_pytorchjob_trains_digits_with_distributed_data_parallel(
    training: Training,
) -> None:
    job = await training.start("pytorch", "digits")
    await job.succeeds()
    assert await job.number("master-0", ACCURACY) >= 0.95
    assert "rank 2 of 3" in await job.log("worker-1")
