"""Lists that a client returns: tables in notebooks and terminals."""

from collections.abc import Iterator

from gangline import display
from gangline.sdk.events import EventRecord
from gangline.sdk.jobs import Job, format_run_time

_JOB_HEAD = ("Job", "Kind", "State", "Replicas", "GPUs", "Duration", "Reason")
_EVENT_HEAD = ("Time", "Type", "Object", "Reason", "Count", "Message")


class JobList(list[Job]):
    """Jobs, the newest first."""

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for job in self:
            yield (
                job.name,
                job.kind.trainer,
                job.state,
                f"{job.running}/{job.desired}",
                job.requested_gpus,
                format_run_time(job),
                job.reason,
            )

    def __repr__(self) -> str:
        return display.plain_table(_JOB_HEAD, self._rows()) if self else "No jobs."

    def _repr_html_(self) -> str:
        return display.table(_JOB_HEAD, self._rows()) if self else display.note("No jobs.")


class EventList(list[EventRecord]):
    """Events, the oldest first."""

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for event in self:
            time = event.last.strftime("%Y-%m-%d %H:%M:%S")
            yield time, event.type, event.subject, event.reason, event.count, event.message

    def __repr__(self) -> str:
        return display.plain_table(_EVENT_HEAD, self._rows()) if self else "No events."

    def _repr_html_(self) -> str:
        return display.table(_EVENT_HEAD, self._rows()) if self else display.note("No events.")
