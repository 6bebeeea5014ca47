"""Warning events: unreadable fields of groups and queues, and contradictory nodes.

An unreadable field is ignored; everything else of the object is used.
"""

from collections.abc import Iterator, Mapping

from gangline.api.describe import ResourceList
from gangline.api.quantity import QuantityError
from gangline.api.resourcelist import amount
from gangline.api.scheduling import (
    CHECKPOINT_ANNOTATION,
    PLACES_ANNOTATION,
    RESERVED_ANNOTATION,
    RUN_TIME_ANNOTATION,
    PodGroup,
    Queue,
)
from gangline.kube.events import EventRecorder
from gangline.scheduler.feed import Feed
from gangline.scheduler.hierarchy import unreadable
from gangline.scheduler.notebook import read_promise
from gangline.scheduler.observe import checkpointed, kept_places, run_time

UNREADABLE = "Unreadable"
LONGEST_QUOTED = 80
"""Maximal characters of an unreadable value that are quoted."""

_READ = {
    RUN_TIME_ANNOTATION: (run_time, "is not a number of seconds"),
    CHECKPOINT_ANNOTATION: (checkpointed, "is not a time (RFC 3339)"),
    PLACES_ANNOTATION: (kept_places, "does not list previous nodes"),
    RESERVED_ANNOTATION: (read_promise, "does not list reserved nodes"),
}


def mistakes_of_group(group: PodGroup) -> str:
    """Return which fields of a group cannot be read; empty: none."""
    problems = [
        f"{name} {why}: {group.metadata.annotations[name][:LONGEST_QUOTED]!r}"
        for name, (read, why) in _READ.items()
        if group.metadata.annotations.get(name) and not read(group)
    ]
    return "; ".join([*problems, *_no_amounts({"minResources": group.spec.min_resources or {}})])


def mistakes_of_queue(queue: Queue) -> str:
    """Return which fields of a queue cannot be read; empty: none."""
    spec = queue.spec
    guarantee = spec.guarantee.resource if spec.guarantee else {}
    lists = {"capability": spec.capability, "deserved": spec.deserved, "guarantee": guarantee}
    return "; ".join(filter(None, [unreadable(queue), *_no_amounts(lists)]))


def _no_amounts(lists: Mapping[str, ResourceList]) -> Iterator[str]:
    for field, amounts in lists.items():
        for name, written in amounts.items():
            try:
                known = amount(name, written)
            except QuantityError:
                yield f"{field} of {name} is not a quantity: {str(written)[:LONGEST_QUOTED]!r}"
            else:
                if known < 0:
                    yield f"{field} of {name} is negative: {written}"


class MistakeReporter:
    """Sends an event for each unreadable field, once until it is corrected."""

    def __init__(self, feed: Feed, events: EventRecorder) -> None:
        self._events = events
        self._told: dict[str, str] = {}
        feed.groups.add_listener(self._on_group)
        feed.queues.add_listener(self._on_queue)

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        self._tell(old, new, mistakes_of_group(new) if new is not None else "")

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        self._tell(old, new, mistakes_of_queue(new) if new is not None else "")

    def _tell(
        self, old: PodGroup | Queue | None, new: PodGroup | Queue | None, problems: str
    ) -> None:
        known = new or old
        assert known is not None
        uid = known.metadata.uid
        if problems and new is not None and self._told.get(uid) != problems:
            self._told[uid] = problems
            self._events.event(new, "Warning", UNREADABLE, f"{problems}. It is ignored.")
        elif not problems:
            self._told.pop(uid, None)
