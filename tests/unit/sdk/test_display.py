"""What notebooks and terminals show of jobs, events and plans; markup in messages is escaped."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from gangline.api.failure import Blame
from gangline.kube.errors import Unreachable
from gangline.sdk import JobHandle, PlanRequest, find_device, model_of_size, plan
from gangline.sdk.client import NoSuchJob
from gangline.sdk.diagnosis import Diagnosis, Finding
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job, JobState, Replica
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.listings import EventList, JobList

START = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = '<script>alert("x")</script>'
REPLICA = Replica("digits-worker-0", "worker", 0, "Error", chief=False, exit_code=1, message=EVIL)
JOB = Job(
    kind=JOB_KINDS[0],
    name="digits",
    namespace="team",
    uid="u",
    state=JobState.FAILED,
    reason=f"worker-0: {EVIL}",
    replicas=(REPLICA,),
    desired=2,
    requested_gpus=2,
    created=START,
    started=START,
    finished=START + timedelta(hours=1, minutes=2, seconds=3),
    queue="research",
)
FINDING = Finding("worker-0", "DiskFull", Blame.NODE, "full", "Delete old files.", evidence=EVIL)
DIAGNOSIS = Diagnosis(
    "digits", "FAILED", FINDING, (replace(FINDING, replica="master-0", consequence=True),),
    summary=EVIL, next_steps=(f"gangline logs {EVIL}",), last_lines=(EVIL,),
)  # fmt: skip


class Calls:
    """The calls of a client that returns ``JOB``, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def get(self, _name: str) -> Job:
        if self.error:
            raise self.error
        return JOB


HANDLE = JobHandle(Calls(), "digits")  # type: ignore[arg-type]
EVENT = EventRecord(START, "Warning", "pod/digits-worker-0", "Failed", EVIL, 2)
PLAN = plan(PlanRequest(model_of_size(7e9, sequence=4096), find_device("H100"), devices=64))


class Tags(HTMLParser):
    """Collects tags that are open at the end, all tags, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


@pytest.mark.parametrize(
    ("shown", "args"),
    [
        (HANDLE, ["pytorchjob/digits", "FAILED"]),
        (EventList([EVENT]), ["pod/digits-worker-0", "Failed", "2026-01-01 00:00:00", EVIL]),
        (PLAN, ["7 B parameters on 64 x H100", PLAN.choices[0].layout_title, "Assumed: "]),
        (JOB, ["pytorchjob/digits", "FAILED", "1:02:03", "worker-0", "queue research", EVIL]),
        (JobList([JOB]), ["digits", "pytorchjob", "FAILED", "0/2", EVIL]),
        (DIAGNOSIS, ["DiskFull", "a consequence", "Delete old files.", EVIL]),
    ],
    ids=["a handle", "events", "a plan", "a job", "jobs", "a diagnosis"],
)
def test_html_view_shows_the_object_escaped(shown: Job, args: list[str]) -> None:
    found = Tags(shown._repr_html_())
    assert not found.open
    assert "script" not in found.tags
    assert all(word in found.text for word in args), found.text


@pytest.mark.parametrize(
    ("shown", "lines"),
    [
        (JOB, [f"<job digits: FAILED, 1:02:03; worker-0: {EVIL}>"]),
        (
            replace(JOB, state=JobState.RUNNING, reason=""),
            ["<job digits: RUNNING, 0/2 running, 1:02:03>"],
        ),
        (HANDLE, [repr(JOB)]),
        (JobHandle(Calls(NoSuchJob("no job")), "x"), ["<job x: deleted>"]),  # type: ignore[arg-type]
        (JobHandle(Calls(), "digits", "another"), ["<job digits: deleted>"]),  # type: ignore[arg-type]
        (
            JobHandle(Calls(Unreachable("no\nserver")), "x"),  # type: ignore[arg-type]
            ["<job x: state unknown: no server>"],
        ),
        (
            JobList([JOB, replace(JOB, name="d", reason="a\n" + 99 * "b")]),
            [
                "Job     Kind        State   Replicas  GPUs  Duration  Reason",
                f"digits  pytorchjob  FAILED  0/2       2     1:02:03   worker-0: {EVIL}",
                f"d       pytorchjob  FAILED  0/2       2     1:02:03   a {77 * 'b'}…",
            ],
        ),
        (
            DIAGNOSIS,
            [
                f"digits FAILED: {EVIL}",
                "  master-0: DiskFull, a consequence",
                f"  | {EVIL}",
                f"  - gangline logs {EVIL}",
            ],
        ),
        (JobList(), ["No jobs."]),
        (EventList(), ["No events."]),
    ],
)
def test_text_view_is_readable(shown: object, lines: list[str]) -> None:
    assert repr(shown).splitlines() == lines


def test_text_view_of_a_plan_has_a_line_for_each_layout() -> None:
    title, head, *lines = repr(PLAN).splitlines()
    assert title == "7 B parameters on 64 x H100-80GB"
    assert head.startswith("Layout")
    assert lines[0].startswith(PLAN.choices[0].layout_title)
    assert lines[len(PLAN.choices)] == f"Assumed: {PLAN.assumptions[0]}"
    unfit = plan(PlanRequest(model_of_size(70e9), find_device("H100"), devices=1))
    assert f"No layout fits; {unfit.fitting_devices} devices" in repr(unfit)
    assert "No layout fits" in unfit._repr_html_()


def test_deleted_job_is_shown_in_one_line_of_html() -> None:
    handle = JobHandle(Calls(NoSuchJob("no job")), EVIL)  # type: ignore[arg-type]
    assert Tags(handle._repr_html_()).text.strip() == f"{EVIL}: deleted"


def test_no_jobs_are_shown_as_none() -> None:
    assert Tags(JobList()._repr_html_()).text.strip() == "No jobs."
    waiting = replace(JOB, state=JobState.QUEUING, started=None, finished=None, replicas=())
    assert "table" not in Tags(waiting._repr_html_()).tags
