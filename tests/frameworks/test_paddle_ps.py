"""Paddle's parameter server: it keeps the weights that two workers train."""

import re

import pytest

from frameworks.training import RunningExample, Training


async def explained(job: RunningExample, replica: str, what: str) -> float:
    """The share of variance that a worker has printed after ``what``."""
    output = re.search(rf"{what} variance explained (-?\d\.\d+)", await job.log(replica))
    assert output is not None
    return float(output.group(1))


@pytest.mark.timeout(400)
async def test_a_paddlejob_trains_with_a_parameter_server(training: Training) -> None:
    job = await training.start("paddle_ps", "diabetes")
    ended = await job.succeeds()
    assert ended["status"]["mode"] == "PS"
    assert await explained(job, "worker-0", "test") >= 0.45
    # Each worker saw only its half of the patients; they agree because of the server.
    first = await explained(job, "worker-0", "epoch 30/30")
    second = await explained(job, "worker-1", "epoch 30/30")
    assert first >= 0.45
    assert abs(first - second) < 0.02
    assert "server 0 of 1 serves" in await job.log("ps-0")
