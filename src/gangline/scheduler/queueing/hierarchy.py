"""Queue hierarchy from annotations, as in Volcano's hierarchical DRF.

``volcano.sh/hierarchy: root/eng/dev`` with ``volcano.sh/hierarchy-weights: 1/2/8`` places a queue
below ``root/eng``, which has weight 2 at the top level, and gives the queue weight 8 there. Inner
nodes of the path become queues that have no Queue object. All other rules are those of queues with
a ``parent``.
"""

import math
from dataclasses import dataclass, replace

from gangline.api.volcano.scheduling import (
    HIERARCHY_ANNOTATION,
    HIERARCHY_WEIGHTS_ANNOTATION,
    ROOT_QUEUE,
    Queue,
)
from gangline.scheduler.types.types import QueueInfo

SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class HierarchyPosition:
    """Position of a queue in the hierarchy, from the top down."""

    ancestors: tuple[tuple[str, float], ...]
    """Names, each with its ancestors (``root/eng``), and weights."""
    weight: float
    """Weight of the queue itself among its siblings."""


def hierarchy_position(queue: Queue) -> HierarchyPosition | None:
    """Return a queue's position; None: its annotations state none, or cannot be parsed."""
    annotations = queue.metadata.annotations
    path = annotations.get(HIERARCHY_ANNOTATION, "").split(SEPARATOR)
    written = annotations.get(HIERARCHY_WEIGHTS_ANNOTATION)
    weights = [1.0] * len(path) if written is None else _weights(written)
    if not all(path) or len(weights) != len(path):
        return None
    if path[0] == ROOT_QUEUE:
        path, weights = path[1:], weights[1:]
    if not path:
        return None
    names = [SEPARATOR.join((ROOT_QUEUE, *path[:count])) for count in range(1, len(path))]
    return HierarchyPosition(tuple(zip(names, weights[:-1], strict=True)), weights[-1])


def hierarchy_problem(queue: Queue) -> str:
    """Return the problem with a queue's hierarchy annotations; empty: none."""
    annotations = queue.metadata.annotations
    if not annotations.get(HIERARCHY_ANNOTATION) or hierarchy_position(queue) is not None:
        return ""
    return (
        f"{HIERARCHY_ANNOTATION} and {HIERARCHY_WEIGHTS_ANNOTATION} do not state its position "
        "with one positive weight for each name"
    )


def _weights(written: str) -> list[float]:
    """Parse weights, raised to at least 1; empty: one of them is invalid."""
    try:
        weights = [float(each) for each in written.split(SEPARATOR)]
    except ValueError:
        return []
    if not all(weight > 0 and math.isfinite(weight) for weight in weights):
        return []
    return [max(1.0, weight) for weight in weights]


class QueueHierarchy:
    """Positions of all queues that have one."""

    def __init__(self) -> None:
        self._positions: dict[str, HierarchyPosition] = {}

    def update(self, queue: Queue) -> None:
        place = hierarchy_position(queue)
        if place is None:
            self.remove(queue.metadata.name)
        else:
            self._positions[queue.metadata.name] = place

    def remove(self, name: str) -> None:
        self._positions.pop(name, None)

    def apply_to(self, queues: dict[str, QueueInfo]) -> None:
        """Set parents and weights of queues by their positions.

        If queues disagree about the weight of an ancestor, the first queue by name decides.
        """
        for name in [name for name in queues if SEPARATOR in name]:
            del queues[name]
        for name, place in sorted(self._positions.items()):
            parent = ""
            for each, weight in place.ancestors:
                queues.setdefault(each, QueueInfo(each, weight=weight, parent=parent))
                parent = each
            queues[name] = replace(queues[name], parent=parent, weight=place.weight)
