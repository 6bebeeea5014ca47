"""PyTorch: DistributedDataParallel over gloo, one master and two workers."""

import re

import pytest

from frameworks.training import Training


@pytest.mark.timeout(600)
async def test_a_pytorchjob_trains_digits_with_distributed_data_parallel(
    training: Training,
) -> None:
    job = await training.start("pytorch", "digits")
    await job.succeeds()
    accuracy = re.search(r"test accuracy (\d\.\d+)", await job.log("master-0"))
    assert accuracy is not None
    assert float(accuracy.group(1)) >= 0.95
    assert "rank 2 of 3" in await job.log("worker-1")
