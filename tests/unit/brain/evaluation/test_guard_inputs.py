"""What the guard decides by is what jobs report: the evaluator hands it on."""

import math
from typing import Any

import pytest

from gangline.brain.advisers.advice import GuardAction, What
from gangline.brain.evaluation.trials import prediction_errors
from gangline.brain.store.engine import Store
from unit.brain.evaluation.scaled_job import FEW, MANY, ScaledJob

SLOW_RESTART: dict[str, Any] = {"restarts": {"count": 2, "seconds": {"starting": 300, "lost": 500}}}


def job_of(store: Store, **seen: Any) -> ScaledJob:
    job = ScaledJob(store)
    if seen:
        job.report(FEW, 1.0, **seen)
    return job


def state_of(job: ScaledJob) -> Any:
    return job.evaluator._memories[job.uid].state


@pytest.mark.parametrize(
    ("seen", "cost_s"),
    [
        pytest.param(SLOW_RESTART, 400.0, id="observed"),
        pytest.param({"saveSeconds": 1.0, "saveIntervalSeconds": 1800.0}, 960.0, id="expected"),
        pytest.param({}, None, id="unknown"),
    ],
)
async def test_cost_of_a_restart_is_what_the_master_reports(
    store: Store, seen: dict[str, Any], cost_s: float | None
) -> None:
    """Before the first restart: a minute, and half of the steps between two checkpoints."""
    job = job_of(store, **seen)
    await job.cycles(1)
    assert state_of(job).restart_cost_s == cost_s


async def test_judged_change_has_its_cost_and_surprise_in_the_history(store: Store) -> None:
    job = job_of(store, **SLOW_RESTART)
    await job.cycles()
    job.report(MANY, step_s=3.0)
    await job.cycles(2)
    (judged,) = [action_ for action_ in await job.actions() if action_.rolled_back]
    assert judged.cost_ms == 400_000
    assert judged.surprise is not None
    assert judged.surprise < 0
    await job.cycles(1)
    assert job.evaluator._prediction_errors[judged.family] == pytest.approx(-judged.surprise)


async def test_mistakes_in_annotations_are_reported_once(store: Store) -> None:
    job = job_of(store)
    watched = job.collector.jobs[job.uid]
    watched.problems = ("gangline.dev/brain: 'yes' is none of off, advise, apply",)
    await job.cycles(2)
    assert job.writes.events == list(watched.problems)


def test_prediction_error_is_the_root_mean_square_of_a_family() -> None:
    def action(family: str, surprise: float | None) -> GuardAction:
        return GuardAction(
            id=1, job="j", family=family, what=What.WORKERS, at_ms=0, surprise=surprise
        )

    actions = [action("a", 0.3), action("a", -0.4), action("a", None), action("b", 0.0)]
    errors = prediction_errors([*actions, action("c", None)])
    assert errors == {"a": pytest.approx(math.sqrt(0.125)), "b": 0.0}
