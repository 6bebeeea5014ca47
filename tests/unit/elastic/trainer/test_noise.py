"""The estimator of gradient noise, on quadratics whose noise is known."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from gangline.elastic.progress import read_progress
from gangline.elastic.trainer.loader import ElasticDataLoader, ElasticDistributedSampler
from gangline.elastic.trainer.trainer import ElasticTrainer
from gangline.elastic.trainer.training_reporter import NoiseEstimator

SIZE = 4000
"""Parameters. Ten estimates suffice because the noise has many independent directions; a network
has more.
"""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_all_precisions_are_measured(dtype: torch.dtype) -> None:
    estimator = NoiseEstimator(every=1)
    estimator.begin_step(0, is_possible=True)
    for sign in (1.0, -1.0):
        estimator.gradient(torch.full((4,), 300.0 + sign, dtype=dtype))
        estimator.end_micro_batch()
    estimator.global_gradients([torch.full((4,), 300.0, dtype=dtype)])
    estimator.end_step((8, 8), 16)
    estimate = estimator.estimate()
    assert estimate is not None
    assert estimate[0] == pytest.approx(360_000, rel=0.05)


def estimate(
    noise_scale: float, micro: int, accumulation: int, processes: int, steps: int, seed: int
) -> tuple[float, float]:
    """Means over all processes of the estimates after ``steps`` steps.

    The gradient of one record is ``g + e`` with ``|g|² = 1`` and ``E|e|² = noise_scale``.
    """
    generator = torch.Generator().manual_seed(seed)
    true = torch.full((SIZE,), 1 / math.sqrt(SIZE))
    spread = math.sqrt(noise_scale / SIZE)
    estimators = [NoiseEstimator() for _ in range(processes)]
    for step in range(steps):
        batches = []
        for estimator in estimators:
            estimator.begin_step(step, is_possible=True)
            for _ in range(accumulation if estimator.is_measuring else 0):
                error = torch.randn(SIZE, generator=generator) * spread / math.sqrt(micro)
                batches.append(true + error)
                estimator.gradient(batches[-1])
                estimator.end_micro_batch()
        for estimator in estimators:
            if estimator.is_measuring:
                estimator.global_gradients([torch.stack(batches).mean(0)])
            estimator.end_step([micro] * accumulation, micro * accumulation * processes)
    estimates = [values for estimator in estimators if (values := estimator.estimate()) is not None]
    sqr, var = zip(*estimates, strict=True)
    return math.fsum(sqr) / len(estimates), math.fsum(var) / len(estimates)


@pytest.mark.parametrize("noise_scale", [20.0, 100.0, 400.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("micro", "accumulation", "processes"), [(8, 1, 8), (8, 4, 2), (4, 16, 1)])
def test_noise_is_within_a_fifth_after_500_steps(
    noise_scale: float, seed: int, micro: int, accumulation: int, processes: int
) -> None:
    sqr, var = estimate(noise_scale, micro, accumulation, processes, 500, seed)
    assert var / sqr == pytest.approx(noise_scale, rel=0.2)
    assert var == pytest.approx(noise_scale, rel=0.2)


def test_single_process_without_accumulation_has_no_estimate() -> None:
    estimator = NoiseEstimator(every=1)
    estimator.begin_step(0, is_possible=True)
    estimator.gradient(torch.ones(3))
    estimator.end_micro_batch()
    estimator.global_gradients([torch.ones(3)])
    estimator.end_step([8], 8)
    assert estimator.estimate() is None


def test_gradients_that_overflowed_are_ignored() -> None:
    estimator = NoiseEstimator(every=1)
    for step, value in enumerate([1.0, float("inf"), float("nan")]):
        estimator.begin_step(step, is_possible=True)
        for _ in range(2):
            estimator.gradient(torch.full((3,), value))
            estimator.end_micro_batch()
        estimator.global_gradients([torch.full((3,), value)])
        estimator.end_step([8, 8], 16)
    assert estimator.estimate() == pytest.approx((3.0, 0.0))


def test_only_every_fiftieth_step_is_measured() -> None:
    estimator = NoiseEstimator()
    measured = []
    for step in range(200):
        estimator.begin_step(step, is_possible=True)
        measured += [step] * estimator.is_measuring
        estimator.end_step([1], 1)
    assert measured == [49, 99, 149, 199]


def test_trainer_reports_the_noise_of_a_quadratic(tmp_path, monkeypatch) -> None:
    """A linear model at a fixed point: the noise of its gradient is that of its records."""
    monkeypatch.setenv("GANGLINE_PROGRESS_FILE", str(tmp_path / "progress"))
    monkeypatch.setattr("gangline.elastic.trainer.training_reporter.WRITE_EVERY_S", 0.0)
    generator = torch.Generator().manual_seed(5)
    noise_scale = 60.0
    true = torch.full((SIZE,), 1 / math.sqrt(SIZE))
    records = torch.randn(8192, SIZE, generator=generator)
    records.mul_(math.sqrt(noise_scale / SIZE)).add_(true)
    data = TensorDataset(records)
    sampler = ElasticDistributedSampler(data, num_replicas=1, rank=0, global_batch_size=32)
    loader = ElasticDataLoader(data, 8, sampler)
    model = torch.nn.Linear(SIZE, 1, bias=False)
    trainer = ElasticTrainer(model, loader)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.0))
    trainer.report_model(layers=1)
    for (batch,) in loader:
        with trainer.step():
            optimizer.zero_grad()
            # The gradient of one record's loss is the record itself.
            model(batch).mean().backward()
            if trainer.is_last:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    report = read_progress(tmp_path / "progress", tmp_path / "none").training
    assert report is not None
    assert trainer.num_steps == 256
    assert (report.batch_size, report.accumulation, report.global_batch) == (8, 4, 32)
    assert report.grad_sqr is not None
    assert report.grad_var is not None
    assert report.grad_var / report.grad_sqr == pytest.approx(noise_scale, rel=0.2)
    assert report.model is not None
    assert (report.model.params, report.model.layers) == (SIZE, 1)
    assert report.step_times is not None
    assert report.step_times.count == 255
    assert report.compute_s is not None
    assert report.data_s is not None
    assert report.sync_s is None, "a single process exchanges nothing"
