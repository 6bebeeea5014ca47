"""Paddle's parameter server: it keeps the weights that two workers train."""

import pytest

from frameworks.training import Training


@pytest.mark.timeout(400)
async def test_a_paddlejob_trains_with_a_parameter_server(training: Training) -> None:
    job = await training.start("paddle_ps", "diabetes")
    ended = await job.succeeds()
    assert ended["status"]["mode"] == "PS"
    explained = r"{} variance explained (-?\d\.\d+)"
    assert await job.number("worker-0", explained.format("test")) >= 0.45
    # Each worker saw only its half of the patients; they agree because of the server.
    first = await job.number("worker-0", explained.format("epoch 30/30"))
    second = await job.number("worker-1", explained.format("epoch 30/30"))
    assert first >= 0.45
    assert abs(first - second) < 0.02
    assert "server 0 of 1 serves" in await job.log("ps-0")
