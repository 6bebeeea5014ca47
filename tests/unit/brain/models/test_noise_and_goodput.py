"""Noise of gradients and goodput, against a quadratic problem whose noise is known."""

import msgspec
import numpy as np
import pytest

from brain_records import a_segment, not_none
from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.models.goodput import GoodputModel, divide_batch, noise_scale
from gangline.brain.models.throughput import Configuration, StepObservation, fit_throughput


def segments_of(
    phi: float, steps: int, *, procs: int = 8, seed: int = 0, per_segment: int = 50
) -> list[SegmentFacts]:
    """Gradients of a quadratic: a constant true gradient and noise of a known covariance."""
    random = np.random.default_rng(seed)
    dimensions, micro = 100, 16
    true = np.ones(dimensions) / np.sqrt(dimensions)
    deviation = np.sqrt(phi / dimensions)  # the trace of the covariance of a sample is phi
    segments = []
    for _ in range(steps // per_segment):
        sqrs, variances = [], []
        for _ in range(per_segment):
            noise = random.normal(0, deviation / np.sqrt(micro), (procs, dimensions))
            small = true + noise
            small_sqr = float((small**2).sum(axis=1).mean())
            big_sqr = float((small.mean(axis=0) ** 2).sum())
            sqr = (procs * big_sqr - small_sqr) / (procs - 1)
            var = (small_sqr - big_sqr) / (1 / micro - 1 / (micro * procs))
            sqrs.append(sqr)
            variances.append(var)
        noise_of = {"grad_sqr": float(np.mean(sqrs)), "grad_var": float(np.mean(variances))}
        segments.append(a_segment(procs=procs, steps=per_segment, **noise_of))
    return segments


@pytest.mark.parametrize("phi", [50.0, 1000.0, 10_000.0])
def test_q12_known_noise_is_found_after_500_steps(phi: float) -> None:
    scale = not_none(noise_scale(segments_of(phi, 500)))
    assert scale.phi == pytest.approx(phi, rel=0.2)
    assert scale.low <= phi <= scale.high


@pytest.mark.parametrize(
    "segments",
    [
        pytest.param([], id="no segments"),
        pytest.param([a_segment(steps=500)], id="not reported"),
        pytest.param(segments_of(100, 50), id="too few steps"),
        pytest.param(
            [a_segment(steps=500, grad_sqr=-0.1, grad_var=5.0)], id="gradient may be zero"
        ),
        pytest.param(
            [msgspec.structs.replace(s, procs=1) for s in segments_of(1000, 500)],
            id="single process",
        ),
    ],
)
def test_noise_that_is_not_known_has_no_scale(segments: list[SegmentFacts]) -> None:
    assert noise_scale(segments) is None


def perfect_job(base: float, phi: float) -> GoodputModel:
    """Step time: 10 ms and 1 ms for each sample of the micro-batch; exchange 5 ms."""
    data = [
        StepObservation(
            Configuration(1, n, m), 500, 0.010 + 0.001 * m + 0.005, 0.01 + 0.001 * m, 0.005
        )
        for n in (2, 4, 8)
        for m in (16.0, 32.0, 64.0)
    ]
    model = not_none(fit_throughput(data))
    return GoodputModel(model, base, phi)


def test_efficiency_of_a_larger_batch_follows_the_noise() -> None:
    model = perfect_job(256, 2560.0)
    assert model.efficiency(512) == pytest.approx((2560 + 256) / (2560 + 512))
    best = not_none(model.best_batch(1, 8, most_batch=512, most_micro_batch=64))
    assert best.global_batch > 256
    noiseless = not_none(
        perfect_job(256, 1.0).best_batch(1, 8, most_batch=512, most_micro_batch=64)
    )
    assert noiseless.global_batch == 256


def test_batch_is_divided_with_as_few_micro_steps_as_fit() -> None:
    assert divide_batch(1, 4, 256, 64) == Configuration(1, 4, 64.0, 1)
    assert divide_batch(1, 2, 256, 64) == Configuration(1, 2, 64.0, 2)
    assert divide_batch(1, 2, 256, 60) == Configuration(1, 2, 128 / 3, 3)
    assert divide_batch(1, 512, 100, 64) is None
    assert divide_batch(1, 2, 256, 0) is None
