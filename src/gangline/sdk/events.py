"""Events of a job, its pods and its owned objects."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from gangline.api.core.core import Event
from gangline.api.jobs.elastic import master_name
from gangline.api.resources import EVENTS
from gangline.kube.client.client import ApiClient
from gangline.sdk.jobs import Job

_MOUNT_FAILURES = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event, or several equal events."""

    last: datetime
    type: str
    """Normal or Warning."""
    subject: str
    """Kind and name of the involved object, such as ``pod/digits-worker-1``."""
    reason: str
    message: str
    count: int
    namespace: str = ""


async def job_events(
    client: ApiClient, namespace: str | None, job: str | Job = ""
) -> list[EventRecord]:
    """Return the events of a job (empty name: all events), the oldest first.

    By its name only, the events of earlier jobs of this name are among them.
    """
    listing = await client.list(EVENTS, namespace)
    return read_events(listing.items, job)


def read_events(events: Iterable[Event], job: str | Job = "") -> list[EventRecord]:
    """Convert events, without those of objects that do not belong to the job."""
    if not job:
        matching = list(events)
    elif isinstance(job, str):
        names = _names_of_job(job)
        matching = [event for event in events if names.fullmatch(event.involved_object.name)]
    else:
        matching = list(_events_of_job(events, job))
    return sorted(map(_read_event, matching), key=lambda summary: (summary.last, summary.subject))


def _events_of_job(events: Iterable[Event], job: Job) -> Iterator[Event]:
    """Yield the events of the job itself, and of objects of its names that are not older.

    An object with an event from before the job's creation belongs to an earlier job.
    """
    names = _names_of_job(job.name)
    by_uid: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        subject = event.involved_object
        if subject.namespace in {"", job.namespace} and names.fullmatch(subject.name):
            by_uid[subject.uid].append(event)
    created = job.created.replace(microsecond=0)  # the precision of its time
    for uid, of_object in by_uid.items():
        is_job = of_object[0].involved_object.kind == job.kind.resource.kind
        if uid == job.uid or (not is_job and all(_first(event) >= created for event in of_object)):
            yield from of_object


_ROLES_WITH_HYPHENS = "dataset-initializer|model-initializer"


@lru_cache
def _names_of_job(job: str) -> re.Pattern[str]:
    """Return a pattern of the names of a job, its replicas, its master and its TensorBoard."""
    replica = rf"(-edljob)?-([a-z]+|{_ROLES_WITH_HYPHENS})(-0)?-\d+"
    own = rf"{re.escape(job)}(-tensorboard.*|{replica})?"
    master = rf"{re.escape(master_name(job))}(-\d+)?"
    return re.compile(f"{own}|{master}")


def _first(event: Event) -> datetime:
    created = event.metadata.creation_timestamp
    first = event.first_timestamp or event.event_time or created or event.last_timestamp
    return first or _BEGINNING


def newest_mount_failure(
    events: Iterable[EventRecord], job: str, *, tensorboard: bool = False
) -> str:
    """Return the message of the last event about a volume that pods of a job wait for, or "".

    A container that waits for it has no reason in its status. ``tensorboard`` selects the pods of
    the TensorBoard instead of the job's own.
    """
    board = f"pod/{job}-tensorboard-"
    messages = [
        f"{event.reason}: {event.message}"
        for event in events
        if event.reason in _MOUNT_FAILURES and event.subject.startswith(board) is tensorboard
    ]
    return messages[-1] if messages else ""


def _read_event(event: Event) -> EventRecord:
    series = event.series
    last = (series and series.last_observed_time) or event.last_timestamp or event.event_time
    subject = event.involved_object
    return EventRecord(
        last=last or event.metadata.creation_timestamp or _BEGINNING,
        type=event.type,
        subject=f"{subject.kind.lower()}/{subject.name}",
        reason=event.reason,
        message=event.message,
        count=max(event.count, series.count if series else 0, 1),
        namespace=subject.namespace,
    )
