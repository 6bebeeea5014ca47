"""What happened to a job, in order: its life cycle from conditions, and reports from events."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from gangline.api.volcano.scheduling import PodGroup
from gangline.dashboard.views.base import View, started
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job

MAX_MOMENTS = 200
"""The newest are shown."""


class TimelineRow(View, frozen=True):
    at: datetime
    what: str
    """``submitted``, ``queued``, ``placed``, ``started``, ``restarting``, ``suspended``,
    ``succeeded``, ``failed``, or the reason of an event.
    """
    message: str = ""
    subject: str = ""
    """The object of an event, such as ``pod/digits-worker-1``."""
    count: int = 1
    is_warning: bool = False


_OF_CONDITION = {
    "Restarting": ("restarting", True),
    "Suspended": ("suspended", False),
    "Succeeded": ("succeeded", False),
    "Failed": ("failed", True),
    "InvalidSpec": ("invalid", True),
    "Stalled": ("stalled", True),
}
_OF_GROUP = {"Unschedulable": ("queued", False), "Scheduled": ("placed", False)}


def timeline(
    job: Job,
    conditions: Iterable[Any],
    groups: Sequence[PodGroup],
    events: Sequence[EventRecord],
) -> tuple[TimelineRow, ...]:
    moments = [TimelineRow(job.created, "submitted"), *_of_conditions(conditions, _OF_CONDITION)]
    for group in groups:
        moments += _of_conditions(group.status.conditions, _OF_GROUP)
    if at := started(job):
        moments.append(TimelineRow(at, "started"))
    moments += [
        TimelineRow(
            event.last,
            event.reason,
            event.message,
            event.subject,
            event.count,
            event.type == "Warning",
        )
        for event in events
    ]
    moments.sort(key=lambda moment: moment.at)
    return tuple(moments[-MAX_MOMENTS:])


def _of_conditions(
    conditions: Iterable[Any], names: dict[str, tuple[str, bool]]
) -> Iterator[TimelineRow]:
    for condition in conditions:
        at = condition.last_transition_time
        if condition.type in names and condition.status == "True" and at is not None:
            what, is_warning = names[condition.type]
            yield TimelineRow(
                at, what, condition.message or condition.reason, is_warning=is_warning
            )
