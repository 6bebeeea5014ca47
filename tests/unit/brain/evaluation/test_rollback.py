"""After a rollback there is no second plan to the size that the job has again."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gangline.api.jobs.elastic import ScalePlan
from gangline.api.meta.objects import ObjectMeta
from gangline.brain.advisers.advice import GuardAction, Verdict, What
from gangline.brain.advisers.view import AdviserView
from gangline.brain.evaluation.cluster_facts import FreeCapacity
from gangline.brain.evaluation.trials import job_state
from gangline.brain.facts.records import RecordedJob, Run
from gangline.brain.publication import is_under_way
from gangline.brain.store.engine import Store
from unit.brain.evaluation.scaled_job import FEW, MANY, ScaledJob


@pytest.fixture
def scaled(store: Store) -> ScaledJob:
    return ScaledJob(store)


async def test_w9_size_of_a_rollback_is_planned_once_however_short_the_cool_down(
    scaled: ScaledJob,
) -> None:
    assert await scaled.cycles() == [MANY]
    scaled.report(MANY, step_s=3.0)
    # The last closed segment is that of six workers until one of three closes.
    assert await scaled.cycles(12) == [MANY, FEW]
    scaled.report(FEW, step_s=1.0)
    assert await scaled.cycles() == [MANY, FEW]


@pytest.mark.parametrize(("phase", "verdict"), [("Succeeded", "kept"), ("Failed", "overtaken")])
def test_rollback_counts_unless_its_plan_failed(phase: str, verdict: str) -> None:
    job = RecordedJob(
        cluster="c", uid="u", namespace="n", name="j", stem="j", kind="ElasticJob", submitted_ms=0
    )
    back = GuardAction(
        id=7, job="u", family="f", what=What.WORKERS, role="worker", at_ms=1, before=6, after=2,
        rollback_of=6, verdict=Verdict.KEPT,
    )  # fmt: skip
    plan: Any = SimpleNamespace(
        metadata=SimpleNamespace(
            name="j-brain-7", labels={"scale-type": "auto"}, creation_timestamp=None
        ),
        status=SimpleNamespace(phase=phase),
    )
    (action,) = job_state(AdviserView(now_ms=2, run=Run(job=job)), None, [back], [plan]).actions
    assert action.verdict == verdict


async def test_growth_whose_pods_do_not_start_is_taken_back_while_the_old_world_trains(
    scaled: ScaledJob,
) -> None:
    """The former world goes on, and its segments say nothing about the one that cannot form."""
    assert await scaled.cycles(1) == [MANY]
    scaled.report(FEW, step_s=1.0)
    assert await scaled.cycles(3) == [MANY, FEW]
    (message,) = scaled.writes.events
    assert message.startswith("workers is set back to 3. After the change the world did not form")


async def test_growth_whose_pods_run_gets_the_time_that_segments_need(scaled: ScaledJob) -> None:
    await scaled.cycles(1)
    for rank in range(FEW, MANY):
        scaled.start_worker(rank)
    scaled.report(FEW, step_s=1.0)
    assert await scaled.cycles(3) == [MANY]
    scaled.report(FEW, step_s=1.0)
    assert await scaled.cycles(3) == [MANY, FEW]


def test_plan_that_stays_open_holds_other_changes_for_a_while_only() -> None:
    created = datetime(2026, 11, 29, tzinfo=UTC)
    plan = ScalePlan(metadata=ObjectMeta(name="p", creation_timestamp=created))
    assert is_under_way(plan, created + timedelta(minutes=14))
    assert not is_under_way(plan, created + timedelta(minutes=16))


async def test_growth_that_the_scheduler_has_no_nodes_for_is_not_planned(scaled: ScaledJob) -> None:
    asked: list[tuple[str, str, int]] = []

    async def check(group: str, role: str, count: int) -> tuple[int, str]:
        asked.append((group, role, count))
        return fits, "2 nodes: Insufficient cpu"

    fits = 0
    scaled.evaluator._capacity = FreeCapacity(check)
    assert await scaled.cycles(3) == []
    item = scaled.workers_item()
    assert item.held_because == (
        "The scheduler has nodes for at most 3 workers of it now: 2 nodes: Insufficient cpu."
    )
    assert asked == [("team-0/train-0-0", "worker", MANY - FEW)]  # once in five minutes
    fits = 3
    scaled.report(FEW, step_s=1.0)
    assert await scaled.cycles(1) == [MANY]
