"""MPI: a launcher starts mpi4py processes in its workers by the exec channel, without SSH."""

import re

import pytest

from frameworks.training import Training


@pytest.mark.timeout(400)
async def test_an_mpijob_trains_a_linear_model_in_two_workers(training: Training) -> None:
    job = await training.start("mpi", "diabetes")
    await job.succeeds()
    output = await job.log("launcher")
    explained = re.search(r"explained variance (\d\.\d+), solved at once (\d\.\d+)", output)
    assert explained is not None, output
    assert abs(float(explained.group(1)) - float(explained.group(2))) < 0.01
    places = re.findall(r"rank \d of 2 on (\S+):", output)
    assert sorted(places) == ["diabetes-worker-0", "diabetes-worker-1"]
    assert "trained on 354 patients" in output
