"""Warning events about nodes whose reported amounts contradict each other."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gangline.api.reference import ObjectReference
from gangline.kube.events import EventRecorder
from gangline.scheduler.model import NOT_SHARED, NodeName
from gangline.scheduler.reasons import amounts_text
from gangline.scheduler.state import ClusterState

BOASTS = "AllocatableOverCapacity"
OVERFULL = "UsedOverAllocatable"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A contradiction in a node's amounts."""

    reason: str
    resources: tuple[str, ...]
    message: str


def contradictions(state: ClusterState) -> Mapping[NodeName, tuple[Contradiction, ...]]:
    """Return the contradictory nodes with what is wrong."""
    nodes = state.nodes
    columns = {c: name for name, c in nodes.columns.items() if not name.startswith(NOT_SHARED)}
    listed = np.array(sorted(columns), dtype=np.intp)
    found: dict[NodeName, tuple[Contradiction, ...]] = {}
    for name in sorted(state.boasting):
        node = nodes.facts[nodes.rows[name]]
        assert node is not None
        resources = ", ".join(node.boasts)
        message = f"Its allocatable amounts exceed its capacity: {resources}."
        found[name] = (Contradiction(BOASTS, node.boasts, message),)
    over = nodes.used[listed] > nodes.allocatable[listed]
    for row in np.flatnonzero(over.any(axis=0)).tolist():
        if nodes.facts[row] is None:
            continue
        name = nodes.name_of(row)
        wrong = {columns[c]: c for c in listed[over[:, row]].tolist()}
        used = {each: int(nodes.used[c, row]) for each, c in wrong.items()}
        has = {each: int(nodes.allocatable[c, row]) for each, c in wrong.items()}
        message = f"Its pods request {amounts_text(used)}; allocatable: {amounts_text(has)}."
        further = Contradiction(OVERFULL, tuple(sorted(wrong)), message)
        found[name] = (*found.get(name, ()), further)
    return found


class NodeReporter:
    """Sends an event for each contradiction, once until it is resolved."""

    def __init__(self, state: ClusterState, events: EventRecorder) -> None:
        self._state, self._events = state, events
        self._told: set[tuple[NodeName, str, tuple[str, ...]]] = set()

    def look(self) -> None:
        """Check all nodes; never waits."""
        current = set()
        for name, wrong in contradictions(self._state).items():
            for each in wrong:
                key = (name, each.reason, each.resources)
                current.add(key)
                if key not in self._told:
                    # Kubelets put the node's name into uid, and kubectl searches events by it.
                    node = ObjectReference(kind="Node", api_version="v1", name=name, uid=name)
                    self._events.event(node, "Warning", each.reason, each.message)
        self._told = current
