"""How many workers: the adviser, its model and the guard together, on a simulated job."""

from itertools import pairwise

import msgspec
import pytest
from benchmarks.brain.simulated_job import Amdahl, Curve, SimulatedJob

from brain_records import not_none
from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import Choice, Verdict
from gangline.brain.advisers.view import AdviserView, expected_rest_s
from gangline.brain.advisers.workers import (
    advise_workers,
    best_size,
    concave_envelope,
    configuration_at,
    floor_of,
    largest_worthwhile,
    marginal_gain,
    size_choices,
)
from gangline.brain.facts.records import Run
from gangline.brain.models.throughput import Configuration, fit_throughput, observations
from unit.brain.histories import a_job, checked

BATCH = 55_440
"""Divisible by all sizes up to 12."""


def simulate(curve: Curve, low: int, high: int, size: int, **changes: object) -> SimulatedJob:
    job = SimulatedJob(curve, low, high, size, BATCH, BATCH // 2, seed=1, noise=0.02)
    for name, value in changes.items():
        setattr(job, name, value)
    return job


def sizes(job: SimulatedJob) -> list[int]:
    return [size for _, size in job.history]


def test_w1_perfect_scaling_reaches_the_largest_size_in_two_actions() -> None:
    job = simulate(Amdahl(0.0, 100.0), 2, 8, 2).run(4)
    assert sizes(job) == [2, 4, 8]
    assert Verdict.ROLLED_BACK not in job.verdicts.values()


def test_w2_without_scaling_the_least_size_in_one_action() -> None:
    assert sizes(simulate(Amdahl(0.98), 2, 8, 4).run(4)) == [4, 2]


def test_w3_the_last_workers_gain_half_of_the_average() -> None:
    job = simulate(Amdahl(0.08, 100.0), 2, 16, 4).run(4)
    assert 10 <= job.size <= 12
    assert len(job.actions) <= 3


def test_w3_with_the_true_curve_the_best_size_is_eleven() -> None:
    job = simulate(Amdahl(0.08, 100.0), 2, 16, 4)
    choices = [
        Choice(value=n, goodput=job.rate(n), low=job.rate(n), high=job.rate(n))
        for n in range(2, 17)
    ]
    assert best_size(choices, 4, 0.5).value == 11
    assert largest_worthwhile(choices, floor_of(0.6))[0].value < 11
    assert largest_worthwhile(choices, floor_of(1.0))[0].value == 2
    for last, choice in pairwise(choices):
        assert marginal_gain(last, choice) == pytest.approx(0.92 / (1 + 0.08 * last.value))


@pytest.mark.slow
def test_w4_a_high_price_shrinks_and_an_idle_cluster_grows_back() -> None:
    job = simulate(Amdahl(0.08, 100.0), 2, 16, 4)
    job.price = lambda now_s: 0.6 if 3 * 3600 < now_s < 6 * 3600 else 0.0
    job.run(3)
    idle = job.size
    job.run(3)
    busy = job.size
    job.run(6)
    assert idle >= 10
    assert busy <= 7
    assert job.size >= 10
    assert len(job.actions) <= 5


@pytest.mark.parametrize("seed", range(4))
def test_w5_noise_without_a_gain_is_no_reason_to_act(seed: int) -> None:
    """Five hours: a fit uses the last 100 minutes. ``benchmarks brain_models`` plays 200 hours."""
    job = SimulatedJob(Amdahl(0.08, 100.0), 2, 11, 11, BATCH, BATCH, seed=seed, noise=0.15).run(5)
    assert job.actions == []


def test_w6_one_size_allows_no_claim_but_one_probe() -> None:
    job = simulate(Amdahl(0.1, 100.0), 2, 16, 4, applies=False).run(0.7)
    advice = checked(*job.advice)
    assert advice.extrapolated
    assert advice.confidence == "low"
    assert advice.probe
    view = job.view()
    model = fit_throughput(observations(view.run.segments, view.now_ms))
    assert [item.probe for item in advise_workers(view, model)] == [True]
    second = advise_workers(msgspec.structs.replace(view, probes=1), model)
    assert not any(item.probe for item in second)
    job = simulate(Amdahl(0.1, 100.0), 2, 16, 4).run(6)
    assert sum(action.probe for action in job.actions) == 1


def test_w11_a_co_tenant_that_leaves_during_the_trial_is_not_credited() -> None:
    job = simulate(Amdahl(0.05, 100.0), 2, 8, 4)
    job.disturbance = lambda it: 1.0 if it.size > 4 else 1.5
    job.run(1)
    assert job.verdicts[1] in (Verdict.KEPT, Verdict.UNCLEAR)


def test_nothing_is_advised_without_bounds_or_a_batch() -> None:
    job = simulate(Amdahl(0.08, 100.0), 2, 16, 4).run(0.5)
    view = job.view()
    model = fit_throughput(observations(view.run.segments, view.now_ms))
    assert advise_workers(view, model)
    unbound = msgspec.structs.replace(view.run.job, workers_max=None)
    without = tuple(msgspec.structs.replace(s, micro_batch=None) for s in view.run.segments)
    for run in (
        msgspec.structs.replace(view.run, job=unbound),
        msgspec.structs.replace(view.run, segments=without),
        msgspec.structs.replace(view.run, segments=()),
    ):
        assert advise_workers(msgspec.structs.replace(view, run=run), model) == []
    assert advise_workers(view, None) == []


def test_shares_are_those_of_the_trainer() -> None:
    segment = SegmentFacts(
        round=0, since=0, until=1, nodes=2, procs=4, micro_batch=32, accumulation=2,
        global_batch=256, steps=1, step_seconds=StepSeconds(1, 1e-06),
    )  # fmt: skip
    assert configuration_at(segment, 2) == Configuration(2, 4, 32.0, 2)
    assert configuration_at(segment, 4) == Configuration(4, 8, 32.0, 1)
    assert configuration_at(segment, 6) == Configuration(6, 12, 22.0, 1)
    assert configuration_at(segment, 1, 64) == Configuration(1, 2, 64.0, 2)
    assert configuration_at(segment, 129) is None


def test_envelope_skips_sizes_that_are_worse_than_their_neighbours() -> None:
    choices = [
        Choice(value=n, goodput=g, low=g, high=g)
        for n, g in ((1, 1.0), (2, 1.2), (3, 1.1), (4, 2.5), (5, 2.6))
    ]
    assert [choice.value for choice in concave_envelope(choices)] == [1, 4, 5]


def test_floor_rises_with_the_price() -> None:
    assert [floor_of(price) for price in (-1, 0, 0.5, 1, 7)] == [0.5, 0.5, 0.75, 1.0, 1.0]


def test_expected_rest_is_the_familys_median_then_the_age() -> None:
    view = AdviserView(now_ms=7_200_000, run=Run(job=a_job(started_ms=0)))
    assert expected_rest_s(view) == 7200
    assert expected_rest_s(msgspec.structs.replace(view, remaining_s=5.0)) == 5.0


def test_no_size_is_advised_that_is_no_multiple_of_the_node_unit() -> None:
    job = simulate(Amdahl(0.0, 100.0), 2, 3, 2)
    job.job = msgspec.structs.replace(job.job, unit=2)
    job.run(0.7)
    assert sizes(job) == [2]
    view = job.view()
    model = not_none(fit_throughput(observations(view.run.segments, job.now_ms)))
    assert [choice.value for choice in size_choices(view, model)] == [2]


def test_prediction_whose_range_says_nothing_is_no_advice() -> None:
    """``93 % more goodput (-96 % to 10400 %)`` was one."""
    job = simulate(Amdahl(0.05, 100.0), 2, 8, 4)
    job.run(0.7)
    view = job.view()
    model = not_none(fit_throughput(observations(view.run.segments, job.now_ms)))
    doubtful = msgspec.structs.replace(view, prediction_error=3.0, probes=1)
    for choice in size_choices(doubtful, model):
        assert choice.high <= max(1.25 * choice.value / job.size, choice.goodput, 1.0)
    assert advise_workers(doubtful, model) == []
