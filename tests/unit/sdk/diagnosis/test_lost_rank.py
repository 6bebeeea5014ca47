"""The operator's message about a rank that has left becomes a diagnosis with an age."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gangline.operator.policies.lost_rank import LostRank
from gangline.sdk.diagnosis import diagnose, find_lost_rank
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.kinds import JOB_KINDS

NOW = datetime(2026, 11, 20, 12, 9, tzinfo=UTC)


def stalled_job(ended: datetime) -> Job:
    reason = LostRank("hello-worker-1", ended, "hello-worker-0", ended).message()
    return Job(
        JOB_KINDS[0], "hello", "team", "uid", JobState.RUNNING, reason, (), 3, 0, NOW, observed=True
    )


def test_message_of_the_operator_is_understood_and_gets_an_age() -> None:
    cause = find_lost_rank(stalled_job(NOW - timedelta(minutes=9)), NOW)
    assert cause is not None
    assert "worker-1 waits for hello-worker-0, which ended 9 minutes ago" in cause.meaning


def test_diagnosis_of_a_running_job_names_the_rank_that_has_left() -> None:
    found = diagnose(stalled_job(datetime.now(UTC) - timedelta(seconds=70)), [])
    assert found.summary.startswith("RankLeft: hello-worker-1 waits for hello-worker-0")
    assert "gangline.dev/stalled=restart" in found.next_steps[0]


def test_job_that_has_ended_is_not_stalled() -> None:
    ended = replace(stalled_job(NOW), state=JobState.FAILED)
    assert find_lost_rank(ended, NOW) is None
