"""TensorFlow: synchronous training over all processes, and over parameter servers."""

import os
import shutil

import pytest

from frameworks.training import ACCURACY, Training

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="TensorFlow listens on all addresses, so each pod needs a network of its own: root, ip",
)


@pytest.mark.timeout(600)
async def test_a_tfjob_trains_digits_with_multi_worker_mirrored_strategy(
    training: Training,
) -> None:
    job = await training.start("tensorflow", "mirrored")
    await job.succeeds()
    assert await job.number("chief-0", ACCURACY) >= 0.95
    assert "rank 1 of 3" in await job.log("worker-0")
    assert "rank 2 of 3" in await job.log("worker-1")


@pytest.mark.timeout(900)
async def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint(
    training: Training,
) -> None:
    job = await training.start("tensorflow", "mirrored", more=("--step-seconds", "0.03"))
    await job.says("worker-1", "step 100/450")
    job.kill("worker-1")
    await job.succeeds()
    assert await job.number("chief-0", ACCURACY) >= 0.95
    assert await job.number("chief-0", r"rank 0 of 3 on \S+: starts at step (\d+)") >= 100


@pytest.mark.timeout(600)
async def test_a_tfjob_trains_digits_with_parameter_server_strategy(training: Training) -> None:
    job = await training.start("tensorflow", "servers")
    await job.succeeds()
    output = await job.log("chief-0")
    assert "weights on /job:ps/replica:0/task:0" in output
    assert await job.number("chief-0", ACCURACY) >= 0.93
    await job.runs_only(set())  # cleanPodPolicy has stopped the parameter servers


@pytest.mark.parametrize(
    ("killed", "goes_on_from"),
    [
        pytest.param("worker-0", 0, id="a worker: its steps go to another one"),
        pytest.param("ps-0", 250, id="a parameter server: its weights come from a checkpoint"),
    ],
)
@pytest.mark.timeout(900)
async def test_parameter_server_training_outlives(
    training: Training, killed: str, goes_on_from: int
) -> None:
    job = await training.start("tensorflow", "servers", more=("--steps", "2000"))
    await job.says("chief-0", "step 500/2000")
    job.kill(killed)
    await job.succeeds()
    assert await job.number("chief-0", ACCURACY) >= 0.93
    began = await job.number("chief-0", r"^starts at step (\d+)")
    assert (began > 0) == (goes_on_from > 0)
    assert began >= goes_on_from
