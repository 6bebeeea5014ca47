"""Events of an elastic job: its own, those of its pods, and those of its master."""

from datetime import UTC, datetime, timedelta

import msgspec

from gangline.api.core.core import Event
from gangline.sdk.events import read_events
from gangline.sdk.jobs import Job, JobState
from gangline.sdk.kinds import JOB_KINDS

CREATED = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_the_master_belongs_to_its_job_and_to_no_other() -> None:
    mine = ["elasticjob-train-dlrover-master", "elasticjob-train-dlrover-master-2"]
    mine += ["train", "train-edljob-worker-3"]
    others = ["elasticjob-train-2-dlrover-master-0", "train-2", "train-2-edljob-worker-0"]
    events = [
        msgspec.convert({"involvedObject": {"kind": "Pod", "name": name}}, type=Event)
        for name in (*mine, *others)
    ]
    assert [each.subject for each in read_events(events, "train")] == sorted(
        f"pod/{name}" for name in mine
    )


def event(name: str, uid: str, at: int, kind: str = "Pod") -> Event:
    subject = {"kind": kind, "name": name, "uid": uid, "namespace": "team"}
    when = (CREATED + timedelta(seconds=at)).isoformat()
    return msgspec.convert({"involvedObject": subject, "firstTimestamp": when}, type=Event)


def test_events_of_a_job_are_not_those_of_earlier_or_similar_jobs() -> None:
    job = Job(
        JOB_KINDS[0], "train", "team", "new", JobState.RUNNING, "", (), 2, 0,
        CREATED + timedelta(milliseconds=700),
    )  # fmt: skip
    kind = job.kind.resource.kind
    own = [event("train", "new", 0, kind), event("train-worker-0", "pod-2", 0)]
    others = [
        event("train", "old", -50, kind),
        event("train", "old", 3, kind),
        event("train-worker-0", "pod-1", -40),
        event("train-worker-0", "pod-1", 2),  # the earlier pod is stopped meanwhile
        event("train-big-worker-0", "pod-3", 5),
    ]
    assert read_events([*others, *own], job) == read_events(own)
