"""Paddle: collectives over gloo, with and without the launcher, and a single worker."""

import pytest

from frameworks.training import ACCURACY, Training


@pytest.mark.timeout(400)
async def test_a_paddlejob_trains_on_tumours_with_the_launcher(training: Training) -> None:
    job = await training.start("paddle", "cancer")
    ended = await job.succeeds()
    assert ended["status"]["mode"] == "Collective"
    assert await job.number("worker-0", ACCURACY) >= 0.95
    assert "rank 0 of 2" in await job.log("worker-0")
    assert "rank 1 of 2" in await job.log("worker-1")


@pytest.mark.timeout(500)
async def test_all_start_again_from_the_checkpoint_when_a_worker_is_killed(
    training: Training,
) -> None:
    job = await training.start("paddle", "cancer", more=("--step-seconds", "0.1"))
    await job.says("worker-1", "step 100/300")
    job.kill("worker-1")
    await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.95
    for rank in (0, 1):
        began = rf"rank {rank} of 2 on \S+: starts at step (\d+)"
        assert await job.number(f"worker-{rank}", began) >= 75


@pytest.mark.timeout(400)
async def test_workers_find_each_other_by_the_names_of_their_services(training: Training) -> None:
    job = await training.start("paddle", "service", script="cancer")
    await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.95
    assert "rank 1 of 2" in await job.log("worker-1")


@pytest.mark.timeout(400)
async def test_a_single_worker_trains_alone(training: Training) -> None:
    job = await training.start("paddle", "single", script="cancer")
    ended = await job.succeeds()
    assert ended["status"]["mode"] == "Single"
    assert await job.number("worker-0", ACCURACY) >= 0.95
    assert "rank 0 of 1" in await job.log("worker-0")
