"""Events of a job, its pods and its owned objects."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from gangline.api.core.core import Event
from gangline.api.jobs.elastic import master_name
from gangline.api.resources import EVENTS
from gangline.kube.client.client import ApiClient

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


async def job_events(client: ApiClient, namespace: str | None, job: str = "") -> list[EventRecord]:
    """Return the events of a job (empty name: all events), the oldest first."""
    listing = await client.list(EVENTS, namespace)
    return read_events(listing.items, job)


def read_events(events: Iterable[Event], job: str = "") -> list[EventRecord]:
    """Convert events, without those of objects that do not belong to the job."""
    matching = [
        _read_event(event)
        for event in events
        if not job or belongs_to_job(event.involved_object.name, job)
    ]
    return sorted(matching, key=lambda summary: (summary.last, summary.subject))


def belongs_to_job(name: str, job: str) -> bool:
    """Return whether a name is that of the job, a replica, its master or its TensorBoard."""
    return _names_of_job(job).fullmatch(name) is not None


@lru_cache
def _names_of_job(job: str) -> re.Pattern[str]:
    own = rf"{re.escape(job)}(-tensorboard.*|-[a-z-]+-\d+)?"
    master = rf"{re.escape(master_name(job))}(-\d+)?"
    return re.compile(f"{own}|{master}")


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
