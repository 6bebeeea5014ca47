"""Warning events: unreadable fields of groups and queues, and nodes with contradictory amounts.

An unreadable field is ignored; everything else of the object is used.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gangline.api.core.reference import ObjectReference
from gangline.api.meta.field_doc import ResourceList
from gangline.api.quantity import QuantityError
from gangline.api.resource_list import parse_resource
from gangline.api.volcano.scheduling import (
    CHECKPOINT_ANNOTATION,
    JOINING_PODS_ANNOTATION,
    PREVIOUS_NODES_ANNOTATION,
    RESERVED_ANNOTATION,
    RUN_TIME_ANNOTATION,
    WAITING_TIME_ANNOTATIONS,
    PodGroup,
    Queue,
)
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.scheduler.apply.reservation_store import read_reservation
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import (
    read_checkpoint_time,
    read_joining_pods,
    read_previous_nodes,
    read_run_time,
    read_waiting_time,
)
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.queueing.messages import amounts_text
from gangline.scheduler.queueing.queue_tree import hierarchy_problem
from gangline.scheduler.types import INTERNAL_RESOURCE_PREFIXES, NodeName

UNREADABLE = "Unreadable"
MAX_QUOTED = 80
"""Maximal characters of an unreadable value that are quoted."""

_READ = {
    RUN_TIME_ANNOTATION: (read_run_time, "is not a number of seconds"),
    CHECKPOINT_ANNOTATION: (read_checkpoint_time, "is not a time (RFC 3339)"),
    PREVIOUS_NODES_ANNOTATION: (read_previous_nodes, "does not list previous nodes"),
    JOINING_PODS_ANNOTATION: (read_joining_pods, "does not list pods"),
    RESERVED_ANNOTATION: (read_reservation, "does not list reserved nodes"),
    **dict.fromkeys(
        WAITING_TIME_ANNOTATIONS, (read_waiting_time, "is not a positive duration such as 1h30m")
    ),
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
                amount = parse_resource(name, written)
            except QuantityError:
                yield f"{field} of {name} is not a quantity: {str(written)[:MAX_QUOTED]!r}"
            else:
                if amount < 0:
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
        present = new or old
        assert present is not None
        uid = present.metadata.uid
        if problems and new is not None and self._reported.get(uid) != problems:
            self._reported[uid] = problems
            self._events.event(new, "Warning", UNREADABLE, f"{problems}. It is ignored.")
        elif not problems:
            self._reported.pop(uid, None)


ALLOCATABLE_OVER_CAPACITY = "AllocatableOverCapacity"
USED_OVER_ALLOCATABLE = "UsedOverAllocatable"


@dataclass(frozen=True, slots=True)
class NodeContradiction:
    """A contradiction in a node's amounts."""

    reason: str
    resources: tuple[str, ...]
    message: str


def node_contradictions(state: SchedulerCache) -> Mapping[NodeName, tuple[NodeContradiction, ...]]:
    """Return the contradictory nodes with what is wrong."""
    nodes = state.nodes
    columns = {
        c: name
        for name, c in nodes.columns.items()
        if not name.startswith(INTERNAL_RESOURCE_PREFIXES)
    }
    listed = np.array(sorted(columns), dtype=np.intp)
    contradictions: dict[NodeName, tuple[NodeContradiction, ...]] = {}
    for name in sorted(state.overreporting_nodes):
        node = nodes.infos[nodes.rows[name]]
        assert node is not None
        resources = ", ".join(node.overreported_resources)
        message = f"Its allocatable amounts exceed its capacity: {resources}."
        contradictions[name] = (
            NodeContradiction(ALLOCATABLE_OVER_CAPACITY, node.overreported_resources, message),
        )
    # All resources are compared, as copying those that are listed takes several times as long.
    over = (nodes.used > nodes.allocatable)[listed]
    for row in np.flatnonzero(over.any(axis=0)).tolist():
        if nodes.infos[row] is None:
            continue
        name = nodes.name_of(row)
        wrong = {columns[c]: c for c in listed[over[:, row]].tolist()}
        used = {resource: int(nodes.used[c, row]) for resource, c in wrong.items()}
        has = {resource: int(nodes.allocatable[c, row]) for resource, c in wrong.items()}
        message = f"Its pods request {amounts_text(used)}; allocatable: {amounts_text(has)}."
        further = NodeContradiction(USED_OVER_ALLOCATABLE, tuple(sorted(wrong)), message)
        contradictions[name] = (*contradictions.get(name, ()), further)
    return contradictions


class NodeContradictionReporter:
    """Sends an event for each contradiction, once until it is resolved."""

    def __init__(self, state: SchedulerCache, events: EventRecorder) -> None:
        self._state, self._events = state, events
        self._reported: set[tuple[NodeName, str, tuple[str, ...]]] = set()

    def report_changes(self) -> None:
        """Check all nodes; never waits."""
        current = set()
        for name, wrong in node_contradictions(self._state).items():
            for contradiction in wrong:
                key = (name, contradiction.reason, contradiction.resources)
                current.add(key)
                if key not in self._reported:
                    # Kubelets put the node's name into uid, and kubectl searches events by it.
                    node = ObjectReference(kind="Node", api_version="v1", name=name, uid=name)
                    self._events.event(node, "Warning", contradiction.reason, contradiction.message)
        self._reported = current
