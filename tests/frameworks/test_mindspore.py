"""MindSpore: data-parallel over its own networking, single worker, and parameter servers."""

import pytest

from frameworks.training import ACCURACY, Training


@pytest.mark.timeout(400)
async def test_an_msjob_trains_digits_data_parallel(training: Training) -> None:
    job = await training.start("mindspore", "digits")
    await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.95
    assert "rank 0 of 2" in await job.log("worker-0")
    assert "rank 1 of 2" in await job.log("worker-1")
    assert "MS_SCHED waits for the others" in await job.log("scheduler-0")


@pytest.mark.timeout(500)
async def test_all_start_again_from_the_checkpoint_when_a_worker_is_killed(
    training: Training,
) -> None:
    job = await training.start("mindspore", "digits", more=("--step-seconds", "0.05"))
    await job.says("worker-1", "step 100/200")
    job.kill("worker-1")
    await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.95
    for rank in (0, 1):
        began = rf"rank {rank} of 2 on \S+: starts at step (\d+)"
        assert await job.number(f"worker-{rank}", began) >= 75


@pytest.mark.timeout(400)
async def test_an_msjob_without_a_scheduler_trains_alone(training: Training) -> None:
    job = await training.start("mindspore", "standalone", script="digits")
    await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.95
    assert "rank 0 of 1" in await job.log("worker-0")


@pytest.mark.timeout(400)
async def test_a_parameter_server_meets_the_others_and_leaves(training: Training) -> None:
    job = await training.start("mindspore", "servers", script="digits")
    await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.9
    # The job ends with its worker, which does not wait for the server.
    await job.says("ps-0", "MS_PSERVER has met 1 workers", 60, outlives=True)
