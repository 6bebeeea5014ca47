"""Warning events about nodes whose reported amounts contradict each other."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gangline.api.reference import ObjectReference
from gangline.kube.events import EventRecorder
from gangline.scheduler.model import INTERNAL_RESOURCE_PREFIXES, NodeName
from gangline.scheduler.reasons import amounts_text
from gangline.scheduler.state import SchedulerCache

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
    found: dict[NodeName, tuple[NodeContradiction, ...]] = {}
    for name in sorted(state.overreporting_nodes):
        node = nodes.infos[nodes.rows[name]]
        assert node is not None
        resources = ", ".join(node.overreported_resources)
        message = f"Its allocatable amounts exceed its capacity: {resources}."
        found[name] = (
            NodeContradiction(ALLOCATABLE_OVER_CAPACITY, node.overreported_resources, message),
        )
    over = nodes.used[listed] > nodes.allocatable[listed]
    for row in np.flatnonzero(over.any(axis=0)).tolist():
        if nodes.infos[row] is None:
            continue
        name = nodes.name_of(row)
        wrong = {columns[c]: c for c in listed[over[:, row]].tolist()}
        used = {each: int(nodes.used[c, row]) for each, c in wrong.items()}
        has = {each: int(nodes.allocatable[c, row]) for each, c in wrong.items()}
        message = f"Its pods request {amounts_text(used)}; allocatable: {amounts_text(has)}."
        further = NodeContradiction(USED_OVER_ALLOCATABLE, tuple(sorted(wrong)), message)
        found[name] = (*found.get(name, ()), further)
    return found


class NodeContradictionReporter:
    """Sends an event for each contradiction, once until it is resolved."""

    def __init__(self, state: SchedulerCache, events: EventRecorder) -> None:
        self._state, self._events = state, events
        self._reported: set[tuple[NodeName, str, tuple[str, ...]]] = set()

    def report_changes(self) -> None:
        """Check all nodes; never waits."""
        current = set()
        for name, wrong in node_contradictions(self._state).items():
            for each in wrong:
                key = (name, each.reason, each.resources)
                current.add(key)
                if key not in self._reported:
                    # Kubelets put the node's name into uid, and kubectl searches events by it.
                    node = ObjectReference(kind="Node", api_version="v1", name=name, uid=name)
                    self._events.event(node, "Warning", each.reason, each.message)
        self._reported = current
