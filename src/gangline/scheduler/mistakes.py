"""Warning events: unreadable fields of groups and queues, and contradictory nodes.

An unreadable field is ignored; everything else of the object is used.
"""

from collections.abc import Iterator, Mapping

from gangline.api.describe import ResourceList
from gangline.api.quantity import QuantityError
from gangline.api.resourcelist import parse_resource
from gangline.api.scheduling import (
    CHECKPOINT_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    RESERVED_ANNOTATION,
    RUN_TIME_ANNOTATION,
    PodGroup,
    Queue,
)
from gangline.kube.events import EventRecorder
from gangline.scheduler.feed import SchedulerInformers
from gangline.scheduler.hierarchy import hierarchy_problem
from gangline.scheduler.notebook import read_reservation
from gangline.scheduler.observe import read_checkpoint_time, read_previous_nodes, read_run_time

UNREADABLE = "Unreadable"
MAX_QUOTED = 80
"""Maximal characters of an unreadable value that are quoted."""

_READ = {
    RUN_TIME_ANNOTATION: (read_run_time, "is not a number of seconds"),
    CHECKPOINT_ANNOTATION: (read_checkpoint_time, "is not a time (RFC 3339)"),
    PREVIOUS_NODES_ANNOTATION: (read_previous_nodes, "does not list previous nodes"),
    RESERVED_ANNOTATION: (read_reservation, "does not list reserved nodes"),
}


def unreadable_group_fields(group: PodGroup) -> str:
    """Return which fields of a group cannot be read; empty: none."""
    problems = [
        f"{name} {why}: {group.metadata.annotations[name][:MAX_QUOTED]!r}"
        for name, (read, why) in _READ.items()
        if group.metadata.annotations.get(name) and not read(group)
    ]
    return "; ".join(
        [*problems, *_invalid_amounts({"minResources": group.spec.min_resources or {}})]
    )


def unreadable_queue_fields(queue: Queue) -> str:
    """Return which fields of a queue cannot be read; empty: none."""
    spec = queue.spec
    guarantee = spec.guarantee.resource if spec.guarantee else {}
    lists = {"capability": spec.capability, "deserved": spec.deserved, "guarantee": guarantee}
    return "; ".join(filter(None, [hierarchy_problem(queue), *_invalid_amounts(lists)]))


def _invalid_amounts(lists: Mapping[str, ResourceList]) -> Iterator[str]:
    for field, amounts in lists.items():
        for name, written in amounts.items():
            try:
                known = parse_resource(name, written)
            except QuantityError:
                yield f"{field} of {name} is not a quantity: {str(written)[:MAX_QUOTED]!r}"
            else:
                if known < 0:
                    yield f"{field} of {name} is negative: {written}"


class UnreadableFieldReporter:
    """Sends an event for each unreadable field, once until it is corrected."""

    def __init__(self, feed: SchedulerInformers, events: EventRecorder) -> None:
        self._events = events
        self._reported: dict[str, str] = {}
        feed.groups.add_listener(self._on_group)
        feed.queues.add_listener(self._on_queue)

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        self._report(old, new, unreadable_group_fields(new) if new is not None else "")

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        self._report(old, new, unreadable_queue_fields(new) if new is not None else "")

    def _report(
        self, old: PodGroup | Queue | None, new: PodGroup | Queue | None, problems: str
    ) -> None:
        known = new or old
        assert known is not None
        uid = known.metadata.uid
        if problems and new is not None and self._reported.get(uid) != problems:
            self._reported[uid] = problems
            self._events.event(new, "Warning", UNREADABLE, f"{problems}. It is ignored.")
        elif not problems:
            self._reported.pop(uid, None)
