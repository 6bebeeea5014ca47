"""Actions: one at a time for each job, and only by the leader (G4)."""

from functools import partial

import msgspec
import pytest

from brain_records import NOW_MS, a_job, a_running_job, job_fact
from gangline.brain.advisers.advice import Choice, GuardAction, Reason, Verdict, What
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import ActionNotBegun, Fenced
from gangline.brain.store.reader import HistoryFilter
from integration.brain.store.conftest import run_together

JOB = a_running_job(1)
ACTION = GuardAction(
    job="uid-1",
    family="f",
    what=What.WORKERS,
    at_ms=NOW_MS,
    predicted=Choice(value=6, goodput=1.4, low=1.2, high=1.6),
)


@pytest.fixture
def fence(store: Store) -> int:
    store.write.facts([job_fact(JOB)])
    return store.write.lead("cluster", "brain-0")


def test_the_newest_actions_are_the_recent_ones(store: Store, fence: int) -> None:
    store.write.facts([job_fact(a_running_job(n)) for n in range(2, 7)])
    for n in range(1, 7):
        action = msgspec.structs.replace(ACTION, job=f"uid-{n}", at_ms=NOW_MS + n)
        store.write.begin_action("cluster", action, fence=fence)
    found = store.read.recent_actions("cluster", NOW_MS + 2, limit=3)
    assert [action.job for action in found] == ["uid-4", "uid-5", "uid-6"]


def test_action_is_open_until_its_verdict(store: Store, fence: int) -> None:
    begun = store.write.begin_action("cluster", ACTION, fence=fence)
    assert store.read.open_actions("cluster") == [begun]
    with pytest.raises(ActionNotBegun, match="action 1 of job uid-1 has no verdict yet"):
        store.write.begin_action("cluster", ACTION, fence=fence)
    judged = msgspec.structs.replace(
        begun, verdict=Verdict.KEPT, why=Reason(code="TrialOver"), judged_ms=NOW_MS + 5, cost_ms=7
    )
    store.write.update_action("cluster", judged, fence=fence)
    assert store.read.open_actions("cluster") == []
    assert store.read.actions("cluster", "uid-1") == [judged]
    assert store.read.recent_actions("cluster", NOW_MS) == [judged]
    store.write.begin_action("cluster", ACTION, fence=fence)


def test_job_that_is_not_stored_gets_no_actions(store: Store, fence: int) -> None:
    with pytest.raises(ActionNotBegun, match="job uid-9 of cluster 'cluster' is not stored"):
        store.write.begin_action(
            "cluster", msgspec.structs.replace(ACTION, job="uid-9"), fence=fence
        )


def test_former_leader_is_fenced(store: Store, fence: int) -> None:
    store.write.lead("another", "brain-1")  # another cluster has another leader
    open_action = store.write.begin_action("cluster", ACTION, fence=fence)
    newer = store.write.lead("cluster", "brain-1")
    assert newer == fence + 1
    writes = [
        lambda: store.write.begin_action("cluster", ACTION, fence=fence),
        lambda: store.write.update_action("cluster", open_action, fence=fence),
    ]
    for write in writes:
        with pytest.raises(Fenced, match="its fencing number is 2, mine 1"):
            write()
    store.write.update_action("cluster", open_action, fence=newer)


def test_of_two_that_act_at_the_same_time_one_does(store: Store, fence: int) -> None:
    outcomes: list[str] = []

    def act() -> None:
        try:
            store.write.begin_action("cluster", ACTION, fence=fence)
            outcomes.append("acted")
        except ActionNotBegun:
            outcomes.append("open")

    run_together(*[act] * 4)
    assert sorted(outcomes) == ["acted", "open", "open", "open"]


def test_two_reporters_of_one_job_lose_nothing(store: Store) -> None:
    def report(first: int) -> None:
        for number in range(first, 60, 2):
            store.write.facts([job_fact(a_running_job(1, observed_ms=number, restarts=number))])
            store.write.facts([job_fact(a_job(100 + number))])

    run_together(partial(report, 0), partial(report, 1))
    stored = store.read.run("cluster", "uid-1")
    assert stored is not None
    assert (stored.job.restarts, stored.job.observed_ms) == (59, 59)
    assert len(store.read.history(HistoryFilter(cluster="cluster")).jobs) == 60
