"""Events of a job, its pods and its owned objects."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from gangline.api.core import Event
from gangline.api.elastic import master_name
from gangline.api.resources import EVENTS
from gangline.kube.client import Client

_BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Happening:
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


async def job_events(client: Client, namespace: str | None, job: str = "") -> list[Happening]:
    """Return the events of a job (empty name: all events), the oldest first."""
    listing = await client.list(EVENTS, namespace)
    return happenings(listing.items, job)


def happenings(events: Iterable[Event], job: str = "") -> list[Happening]:
    """Convert events, without those of objects that do not belong to the job."""
    found = [
        _happening(event)
        for event in events
        if not job or is_called_after(event.involved_object.name, job)
    ]
    return sorted(found, key=lambda each: (each.last, each.subject))


def is_called_after(name: str, job: str) -> bool:
    """Return whether a name is that of the job, a replica, its master or its TensorBoard."""
    return _called_after(job).fullmatch(name) is not None


@lru_cache
def _called_after(job: str) -> re.Pattern[str]:
    own = rf"{re.escape(job)}(-tensorboard.*|-[a-z-]+-\d+)?"
    master = rf"{re.escape(master_name(job))}(-\d+)?"
    return re.compile(f"{own}|{master}")


def _happening(event: Event) -> Happening:
    series = event.series
    last = (series and series.last_observed_time) or event.last_timestamp or event.event_time
    subject = event.involved_object
    return Happening(
        last=last or event.metadata.creation_timestamp or _BEGINNING,
        type=event.type,
        subject=f"{subject.kind.lower()}/{subject.name}",
        reason=event.reason,
        message=event.message,
        count=max(event.count, series.count if series else 0, 1),
        namespace=subject.namespace,
    )
