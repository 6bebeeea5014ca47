"""HTML of jobs in notebooks: state, replicas, reasons; markup in messages is escaped."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from gangline.api.failure import Blame
from gangline.sdk.diagnosis import Diagnosis, Finding
from gangline.sdk.jobs import Job, JobState, Replica
from gangline.sdk.kinds import JOB_KINDS
from gangline.sdk.session import JobList

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
        (JOB, ["pytorchjob/digits", "FAILED", "1:02:03", "worker-0", "queue research", EVIL]),
        (JobList([JOB]), ["digits", "pytorchjob", "FAILED", "0/2", EVIL]),
        (DIAGNOSIS, ["DiskFull", "a consequence", "Delete old files.", EVIL]),
    ],
    ids=["a job", "jobs", "a diagnosis"],
)
def test_html_view_shows_the_object_escaped(shown: Job, args: list[str]) -> None:
    found = Tags(shown._repr_html_())
    assert not found.open
    assert "script" not in found.tags
    assert all(word in found.text for word in args), found.text


def test_no_jobs_are_shown_as_none() -> None:
    assert Tags(JobList()._repr_html_()).text.strip() == "No jobs."
    waiting = replace(JOB, state=JobState.QUEUING, started=None, finished=None, replicas=())
    assert "table" not in Tags(waiting._repr_html_()).tags
