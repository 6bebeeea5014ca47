"""What lists, followed jobs and the SDK show of the progress that a training reports."""

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from gangline.api.core.core import ConfigMap
from gangline.cli.render.jobs import job_data, job_table
from gangline.cli.render.live_view import LiveView, PlainView
from gangline.sdk.goodput import with_steps
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.progress import Progress

NOW = datetime(2026, 11, 20, tzinfo=UTC)
REPORT = Progress(40, 130.0, {"loss": "0.25"}, NOW)


def running(progress: Progress | None = None, *, kind: str = "pytorchjob") -> Job:
    entry = next(entry for entry in JOB_KINDS if entry.trainer == kind)
    job = Job(entry, "train", "team", kind, JobState.RUNNING, "", (), 0, 0, NOW)
    return replace(job, progress=progress)


def table(*jobs: Job) -> list[list[str]]:
    lines = job_table(jobs, NOW, namespaces=False, wide=True).splitlines()
    return [line.split() for line in lines]


def test_a_list_has_the_column_as_soon_as_a_job_reports() -> None:
    assert "PROGRESS" not in table(running())[0]
    head, first, second = table(running(REPORT), running(Progress(7)))
    assert head.index("PROGRESS") == head.index("AGE") + 1
    assert "40%, 2:10 left" in " ".join(first)
    assert "7%" in second
    data = job_data(running(REPORT), NOW)["progress"]
    assert data == {
        "percentage": 40,
        "secondsLeft": 130.0,
        "metrics": {"loss": "0.25"},
        "reportedAt": "2026-11-20T00:00:00+00:00",
    }


def test_each_tenth_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView("train")
    for percentage in (0, 3, 10, 12, 47, 100):
        view.show(running(Progress(percentage)))
    printed = [line for line in capsys.readouterr().err.splitlines() if "trains" in line]
    assert [line.split()[2] for line in printed] == ["0%", "10%", "47%", "100%"]


def test_a_followed_job_has_a_bar() -> None:
    out = io.StringIO()
    view = LiveView("train", Console(file=out, force_terminal=True, width=110, height=20))
    with view.live:
        view.show(running(REPORT))
        view.live.refresh()
        assert "━" in out.getvalue()
        assert "40%, 2:10 left" in out.getvalue()


class Masters:
    """A client whose API server has the state of one master."""

    async def get(self, _: Any, name: str, namespace: str) -> ConfigMap:
        assert (name, namespace) == ("elasticjob-train-dlrover-master", "team")
        steps = {"step": "90", "totalSteps": "120", "stepsPerSecond": "0.5"}
        return ConfigMap(data={"goodput": "0.9", "time": NOW.isoformat()} | steps)


async def test_a_watched_list_has_the_steps_of_elastic_jobs() -> None:
    jobs = [running(REPORT), running(kind="elasticjob")]
    ended = replace(jobs[1], state=JobState.SUCCEEDED, uid="ended")
    client: Any = Masters()
    first, second, last = await with_steps(client, [*jobs, ended])
    assert first.progress == REPORT
    assert second.progress is not None
    assert second.progress.summary == "75%, 1:00 left"
    assert second.progress.age_s(NOW + timedelta(seconds=5)) == 5.0
    assert last.progress is None
