"""Priors of the exchange, from the devices that nodes report."""

import pytest

from gangline.api.jobs.training_facts import ModelShapeFacts
from gangline.brain.facts.records import RoleSize, Run
from gangline.brain.models.throughput import (
    NO_PRIOR,
    Configuration,
    StepObservation,
    fit_throughput,
    job_prior,
    throughput_prior,
)
from unit.brain.histories import a_job


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("NVIDIA-A100-SXM4-80GB", 230 / 200),
        ("NVIDIA-H100-80GB-HBM3", 1.0),
        ("Tesla-V100-SXM2-32GB", 130 / 50),
        ("V100", 130 / 50),
        ("T4", 1.0),
    ],
)
def test_bandwidth_ratio_of_the_devices_that_nodes_report(name: str, ratio: float) -> None:
    assert throughput_prior(name, None).between_nodes == pytest.approx(ratio)


def test_unknown_devices_have_no_prior() -> None:
    assert throughput_prior("", 10**9) is NO_PRIOR
    assert throughput_prior("Some-Other-Device", 10**9) is NO_PRIOR


def test_size_of_the_model_gives_the_exchange_of_a_job_with_one_process() -> None:
    prior = throughput_prior("A100", 10**9)
    assert prior.exchange_s == pytest.approx(2 * 4e9 / 230e9)
    single = [StepObservation(Configuration(1, 1, 32.0), 500, 1.0, 1.0, None)]
    model = fit_throughput(single, prior)
    assert model is not None
    expected = 1.0 + 4e9 / 230e9 * 2 * 7 / 8
    assert model.step_time(Configuration(1, 8, 32.0)) == pytest.approx(expected, rel=1e-3)
    assert model.extrapolated(Configuration(1, 8, 32.0))


def test_prior_of_a_job_takes_what_any_of_its_runs_reports() -> None:
    gpu = RoleSize(role="worker", since_ms=0, replicas=1, gpus=8, gpu_model="NVIDIA-A100-80GB")
    model = ModelShapeFacts(params=10**9)
    runs = [Run(job=a_job(roles=(gpu,))), Run(job=a_job("past", model=model))]
    assert job_prior(runs) == throughput_prior("A100", 10**9)
    assert job_prior(runs[1:]) is NO_PRIOR
    assert job_prior([]) is NO_PRIOR
