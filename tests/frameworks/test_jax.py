"""JAX: data-parallel training over processes on CPUs, gradients summed by gloo."""

import re

import pytest

from frameworks.training import Training


@pytest.mark.timeout(400)
async def test_a_jaxjob_trains_on_tumours_over_three_processes(training: Training) -> None:
    job = await training.start("jax", "cancer")
    await job.succeeds()
    accuracy = re.search(r"test accuracy (\d\.\d+)", await job.log("worker-0"))
    assert accuracy is not None
    assert float(accuracy.group(1)) >= 0.94
    losses = [
        re.findall(r"step \d+/300 loss \d\.\d+", await job.log(f"worker-{index}"))
        for index in range(3)
    ]
    assert losses[0]
    assert losses[0] == losses[1] == losses[2]  # each has the mean over all samples
