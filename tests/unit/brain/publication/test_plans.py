"""Actions as plans and as tuning."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from brain_records import not_none
from gangline.api.jobs.elastic import ElasticJob, ScalePlan
from gangline.api.jobs.training_facts import JobTuning, LoaderTuning
from gangline.api.meta.objects import ObjectMeta
from gangline.api.validation.validate import validate_job
from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.guard.decide import TUNED
from gangline.brain.publication import (
    PLANNED,
    is_outdated,
    next_tuning,
    scale_plan,
)

JOB = ElasticJob(
    api_version="elastic.iml.github.io/v1alpha1",
    kind="ElasticJob",
    metadata=ObjectMeta(name="train", namespace="team", uid="u"),
)
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def change(what: What, value: float, **more: Any) -> GuardAction:
    return GuardAction(id=7, job="u", family="f", at_ms=0, what=what, after=value, **more)


def tuned(before: JobTuning | None, action: GuardAction) -> JobTuning:
    return not_none(next_tuning(before, action))


@pytest.mark.parametrize("what", sorted(PLANNED))
def test_plans_of_all_fields_are_valid_and_marked(what: What) -> None:
    plan = not_none(scale_plan(JOB, change(what, 4_000), "why"))
    assert plan.metadata.name == "train-brain-7"
    assert plan.metadata.labels["scale-type"] == "auto"
    assert plan.metadata.annotations["gangline.dev/brain-reason"] == "why"
    assert plan.spec.owner_job == "train"
    assert validate_job(plan) == []


def test_plan_of_workers_sets_their_number_only() -> None:
    plan = not_none(scale_plan(JOB, change(What.WORKERS, 6.0)))
    assert msgspec.to_builtins(plan.spec)["replicaResourceSpecs"] == {"worker": {"replicas": 6}}


def test_memory_of_one_rank_migrates_its_pod() -> None:
    plan = not_none(scale_plan(JOB, change(What.PS_MEMORY, 8 << 30, rank=2)))
    (pod,) = plan.spec.migrate_pods
    assert (pod.type, pod.rank_index, pod.resource) == ("ps", 2, {"memory": "8Gi"})
    assert plan.spec.replica_resource_specs == {}


@pytest.mark.parametrize("what", sorted(set(What) - PLANNED))
def test_other_fields_have_no_plan(what: What) -> None:
    assert scale_plan(JOB, change(what, 3)) is None


def test_each_tuning_has_the_next_version_and_keeps_the_rest() -> None:
    first = tuned(None, change(What.LOADER_WORKERS, 6, role="worker"))
    assert (first.version, first.dataloader) == (1, LoaderTuning(num_workers=6))
    second = not_none(
        next_tuning(first, change(What.MICRO_BATCH, 16, role="worker", target="H100"))
    )
    assert second.version == 2
    assert second.dataloader == LoaderTuning(num_workers=6)
    assert second.devices == {"H100": LoaderTuning(batch_size=16)}


def test_expected_failures_are_the_prior_of_the_trainer_until_they_are_taken_back() -> None:
    interval = change(What.CHECKPOINT_INTERVAL, 600.0, between_failures_s=9_000.0)
    first = not_none(
        next_tuning(JobTuning(v=1, version=3, dataloader=LoaderTuning(num_workers=6)), interval)
    )
    assert (first.version, first.dataloader) == (4, LoaderTuning(num_workers=6))
    assert first.checkpoint is not None
    assert first.checkpoint.seconds / first.checkpoint.failures == 9_000.0
    back = tuned(first, change(What.CHECKPOINT_INTERVAL, 60.0))
    assert (back.version, back.checkpoint) == (5, None)


@pytest.mark.parametrize("what", sorted(set(What) - TUNED))
def test_tuning_carries_nothing_else(what: What) -> None:
    assert next_tuning(JobTuning(v=1, version=3), change(what, 3)) is None


@pytest.mark.parametrize(
    ("phase", "age_h", "label", "outdated"),
    [
        ("Succeeded", 25, "true", True),
        ("Failed", 25, "true", True),
        ("Succeeded", 23, "true", False),
        ("Scaling", 25, "true", False),
        ("Succeeded", 25, "", False),
    ],
)
def test_only_old_finished_plans_of_the_brain_are_outdated(
    phase: str, age_h: int, label: str, outdated: bool
) -> None:
    plan = msgspec.convert(
        {
            "metadata": {"name": "p", "labels": {"gangline.dev/brain": label}},
            "status": {"phase": phase, "finishTime": (NOW - timedelta(hours=age_h)).isoformat()},
        },
        ScalePlan,
    )
    assert is_outdated(plan, NOW) is outdated
