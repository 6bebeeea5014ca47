"""Changes that are not in the cluster: the API server is away, or there is nothing to write to."""

from typing import Any

import pytest

from gangline.api.brain.job_advice import APPLIED, HELD
from gangline.brain.advisers.advice import Verdict
from gangline.brain.store.engine import Store
from unit.brain.evaluation.scaled_job import FEW, MANY, ScaledJob


class NothingToWrite:
    """Replaces the writing of changes while ``is_missing``: there is nothing to write them to."""

    def __init__(self, job: ScaledJob, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_missing, self.tries = True, 0
        actuator = job.evaluator._trials._actuator
        self._carry_out = actuator.carry_out
        monkeypatch.setattr(actuator, "carry_out", self)

    async def __call__(self, *change: Any) -> bool:
        self.tries += 1
        return False if self.is_missing else await self._carry_out(*change)


async def test_change_without_a_place_is_held_with_the_reason_and_counts_nowhere(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ScaledJob(store, cooldown_s=9)
    place = NothingToWrite(job, monkeypatch)
    # More often than the job may be changed in a day.
    for tried in range(1, 6):
        await job.cycles(1)
        assert place.tries == tried
        item = job.workers_item()
        assert (item.state, item.held_because) == (
            HELD,
            "The job has nothing that this change can be written to; tried again in 9 s.",
        )
    assert {action.verdict for action in await job.actions()} == {Verdict.VOID}
    state = job.evaluator._memories[job.uid].state
    assert (state.actions, state.probes, job.evaluator._trials.cluster.resizes_ms) == ((), 0, ())
    place.is_missing = False
    assert await job.cycles(1) == [MANY]
    assert job.workers_item().state == APPLIED


async def test_next_try_waits_for_the_pause(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = ScaledJob(store, cooldown_s=25)
    place = NothingToWrite(job, monkeypatch)
    tries, left = [], []
    for _ in range(6):
        await job.cycles(1)
        tries.append(place.tries)
        left.append(job.workers_item().held_because.rpartition(" in ")[2])
    assert tries == [1, 1, 1, 2, 2, 2]
    assert left == ["25 s.", "15 s.", "5 s.", "25 s.", "15 s.", "5 s."]


async def test_change_is_applied_once_the_api_server_has_taken_it(store: Store) -> None:
    job = ScaledJob(store)
    job.plans.is_away = True
    assert await job.cycles(1) == []
    item = job.workers_item()
    assert item.state == HELD
    assert "as soon as it does" in item.held_because
    job.plans.is_away = False
    assert await job.cycles(3) == [MANY]
    (action,) = await job.actions()
    assert action.verdict is Verdict.PENDING


async def grown(store: Store) -> ScaledJob:
    """A job whose growth has made it slower, which the next evaluation finds."""
    job = ScaledJob(store)
    assert await job.cycles(1) == [MANY]
    job.report(MANY, step_s=3.0)
    return job


async def test_rollback_is_reported_once_the_api_server_has_taken_it(store: Store) -> None:
    job = await grown(store)
    job.plans.is_away = True
    assert await job.cycles(3) == [MANY]
    assert job.writes.events == []
    job.plans.is_away = False
    assert await job.cycles(3) == [MANY, FEW]
    (message,) = job.writes.events
    assert message.startswith("workers is set back to 3. Goodput changed by -")


async def test_rollback_without_a_place_is_reported_as_not_done(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await grown(store)
    place = NothingToWrite(job, monkeypatch)
    assert await job.cycles(4) == [MANY]
    assert place.tries == 1
    (message,) = job.writes.events
    assert message.startswith("workers cannot be set back to 3")
    _, back = await job.actions()
    assert (back.rollback_of, back.verdict) == (1, Verdict.VOID)
    assert [action.id for action in job.evaluator._memories[job.uid].state.actions] == [1]


async def test_change_that_the_history_refuses_is_held_with_that_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ScaledJob(store)

    async def refuse(_record: object) -> None:
        return None

    monkeypatch.setattr(job.history, "begin_action", refuse)
    assert await job.cycles(1) == []
    item = job.workers_item()
    assert item.state == HELD
    assert "history did not take the change" in item.held_because
