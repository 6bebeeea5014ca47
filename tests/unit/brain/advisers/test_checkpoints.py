"""The interval between checkpoints, from costs and failures."""

import msgspec
import pytest

from gangline.api.jobs.training_facts import SegmentFacts, StepSeconds
from gangline.brain.advisers.advice import Confidence
from gangline.brain.advisers.checkpoints import (
    PRIOR,
    advise_checkpoints,
    between_failures_s,
    daly_interval,
    posterior,
)
from gangline.brain.advisers.view import AdviserView, ClusterView, Exposure
from gangline.brain.facts.records import Run
from gangline.elastic.checkpoint.save_schedule import daly_interval as trainers_interval
from unit.brain.histories import a_job, checked

HOUR = 3600.0


def make_view(
    save_s: float | None = 1.0, interval_s: float | None = HOUR, **changes: object
) -> AdviserView:
    segment = SegmentFacts(
        round=0, since=0, until=300_000, nodes=2, procs=16, micro_batch=8, steps=100,
        step_seconds=StepSeconds(1, 3.0), save_seconds=save_s, save_interval_seconds=interval_s,
    )  # fmt: skip
    view = AdviserView(
        now_ms=400_000,
        run=Run(job=a_job(), segments=(segment,)),
    )
    return msgspec.structs.replace(view, **changes)


@pytest.mark.parametrize("save_s", [0.05, 1, 60, 5000])
def test_interval_is_that_of_the_trainer(save_s: float) -> None:
    assert daly_interval(save_s, 2000) == trainers_interval(save_s, 2000)


def test_t8_adviser_uses_what_the_family_has_seen() -> None:
    """A failure in 48 hours of a device is one in three hours of this job."""
    seen = Exposure(failures=1e6, gpu_hours=48e6)
    (advice,) = advise_checkpoints(make_view(exposure=seen))
    assert advice.value == pytest.approx(146, abs=1)
    assert advice.low is not None
    assert advice.high is not None
    assert advice.low < advice.value < advice.high
    assert advice.confidence is Confidence.HIGH
    checked(advice)


def test_prior_is_one_failure_in_thirty_thousand_device_hours() -> None:
    assert between_failures_s(posterior(), 1000) == 30 * HOUR


def test_cluster_counts_for_four_failures_at_most() -> None:
    cluster = Exposure(failures=399.0, gpu_hours=10_000.0)
    rate = posterior(limited=(cluster,))
    assert rate.failures == 4
    assert rate.gpu_hours == pytest.approx(400)
    own = posterior(Exposure(failures=0.0, gpu_hours=1e6), limited=(cluster,))
    assert between_failures_s(own, 1) > 1000 * between_failures_s(rate, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"save_s": None},
        {"interval_s": None},
        {"save_s": 0.0},
        {"run": Run(job=make_view().run.job)},
    ],
)
def test_nothing_is_advised_where_costs_are_not_known(changes: dict[str, object]) -> None:
    assert advise_checkpoints(make_view(**changes)) == []


def test_nothing_is_advised_where_little_would_be_saved() -> None:
    best = daly_interval(1.0, between_failures_s(posterior(), 16))
    assert advise_checkpoints(make_view(interval_s=best * 1.1)) == []
    assert advise_checkpoints(make_view(save_s=0.01)) == []


def test_failures_of_the_cluster_shorten_the_interval() -> None:
    cluster = ClusterView(exposure=Exposure(failures=500.0, gpu_hours=5e4))
    (often,) = advise_checkpoints(make_view(save_s=10.0, cluster=cluster))
    assert often.value is not None
    assert often.value < daly_interval(10.0, between_failures_s(PRIOR, 16))
