"""JAX: data-parallel training over processes on CPUs, gradients summed by gloo."""

import re

import pytest

from frameworks.training import ACCURACY, Training

SLOWLY = ("--step-seconds", "0.05")
"""Leaves time for a kill: otherwise the training takes two seconds."""


@pytest.mark.timeout(600)
async def test_a_jaxjob_trains_on_tumours_over_three_processes(training: Training) -> None:
    job = await training.start("jax", "cancer")
    await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.94
    losses = [
        re.findall(r"step \d+/300 loss \d\.\d+", await job.log(f"worker-{index}"))
        for index in range(3)
    ]
    assert losses[0]
    assert losses[0] == losses[1] == losses[2]  # each has the mean over all samples


@pytest.mark.parametrize("together", [False, True], ids=["each_alone", "all_together"])
@pytest.mark.timeout(900)
async def test_a_jaxjob_goes_on_from_its_checkpoint_when_a_process_is_killed(
    training: Training, together: bool
) -> None:
    job = await training.start("jax", "cancer", together=together, more=SLOWLY)
    await job.says("worker-1", "step 100/300")
    job.kill("worker-1")
    ended = await job.succeeds()
    assert await job.number("worker-0", ACCURACY) >= 0.94
    assert await job.number("worker-0", r"process 0 of 3 on \S+: starts at step (\d+)") >= 80
    if together:
        assert ended["status"]["restarts"]["total"] == 1
