"""What waiting commands say about a job: why it waits with what helps, and each change once."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gangline.cli.render.live_view import PlainView, format_progress
from gangline.sdk.jobs import Job, JobState, Replica
from gangline.sdk.kinds import JOB_KINDS

NOW = datetime(2026, 11, 20, tzinfo=UTC)
SHORT = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def job(state: JobState, reason: str = "", running: int = 0, restarts: int = 0) -> Job:
    replicas = tuple(
        Replica(f"hello-worker-{index}", "worker", index, "Running", False, restarts=restarts)
        for index in range(running)
    )
    return Job(JOB_KINDS[0], "hello", "team", "uid", state, reason, replicas, 3, 0, NOW)


@pytest.mark.parametrize(
    ("state", "parts"),
    [
        (job(JobState.QUEUING, SHORT), [SHORT, "gangline explain hello -n team", "--gpus N"]),
        (job(JobState.PENDING), ["0 of 3 replicas run"]),
        (job(JobState.PENDING, running=3), ["starts: all 3 replicas run"]),
        (job(JobState.PENDING, "worker-0: ErrImagePull"), ["worker-0: ErrImagePull"]),
        (job(JobState.RUNNING, running=2, restarts=1), ["2 of 3 replicas, 2 restarts"]),
        (job(JobState.RESTARTING, "worker-1: Killed"), ["restarts: worker-1: Killed"]),
        (job(JobState.SUSPENDED), ["gangline resume hello -n team"]),
        (
            job(JobState.SUSPENDED, "PyTorchJob hello resumes when its former pods have ended."),
            ["is resumed, and waits"],
        ),
    ],
)
def test_progress_says_what_happens_and_what_helps(state: Job, parts: list[str]) -> None:
    text = format_progress(state)
    assert [part for part in parts if part not in text] == []


def test_gpus_are_advised_only_where_they_are_short() -> None:
    assert "--gpus" not in format_progress(job(JobState.QUEUING, "2 Insufficient cpu."))


def test_each_change_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView("hello")
    first = job(JobState.PENDING)
    for each in (first, first, replace(first, state=JobState.RUNNING), first):
        view.show(each)
    view.show(job(JobState.SUCCEEDED))
    printed = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in printed] == ["is", "runs:", "is"]
