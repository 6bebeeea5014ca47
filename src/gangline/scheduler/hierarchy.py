"""Queues whose place is written in annotations, as Volcano's hierarchical DRF has it. Pure.

``volcano.sh/hierarchy: root/eng/dev`` with ``volcano.sh/hierarchy-weights: 1/2/8`` puts a queue
below ``root/eng``, which weighs 2 beside others at the top, and gives the queue the weight 8 there.
What is between the root and a queue becomes a queue that is nobody's object; then the rules are
those of queues with a ``parent``.
"""

import math
from dataclasses import dataclass, replace

from gangline.api.scheduling import (
    HIERARCHY_ANNOTATION,
    HIERARCHY_WEIGHTS_ANNOTATION,
    ROOT_QUEUE,
    Queue,
)
from gangline.scheduler.model import QueueFacts

SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queue stands, from the top down."""

    above: tuple[tuple[str, float], ...]
    """Names, each with those above it (``root/eng``), and weights."""
    weight: float
    """Of the queue itself, among those beside it."""


def place_of(queue: Queue) -> Place | None:
    """Return where a queue's annotations put it; None: they do not say so, or cannot be read."""
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
    return Place(tuple(zip(names, weights[:-1], strict=True)), weights[-1])


def unreadable(queue: Queue) -> str:
    """Return what of a queue's place cannot be read, in words; empty: nothing."""
    annotations = queue.metadata.annotations
    if not annotations.get(HIERARCHY_ANNOTATION) or place_of(queue) is not None:
        return ""
    return (
        f"{HIERARCHY_ANNOTATION} and {HIERARCHY_WEIGHTS_ANNOTATION} do not say where it stands, "
        "with one weight above nothing for each name"
    )


def _weights(written: str) -> list[float]:
    """Read weights, none of them less than 1; nothing: one cannot be read."""
    try:
        weights = [float(each) for each in written.split(SEPARATOR)]
    except ValueError:
        return []
    if not all(weight > 0 and math.isfinite(weight) for weight in weights):
        return []
    return [max(1.0, weight) for weight in weights]


class Hierarchy:
    """The places of all queues that have one."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    def note(self, queue: Queue) -> None:
        """Note the place of a queue that is new or has changed."""
        place = place_of(queue)
        if place is None:
            self.forget(queue.metadata.name)
        else:
            self._places[queue.metadata.name] = place

    def forget(self, name: str) -> None:
        """Forget a queue that is gone."""
        self._places.pop(name, None)

    def arrange(self, queues: dict[str, QueueFacts]) -> None:
        """Put queues where they say that they stand.

        Queues may differ about the weight of one above them: the first by name is believed.
        """
        for name in [name for name in queues if SEPARATOR in name]:
            del queues[name]
        for name, place in sorted(self._places.items()):
            parent = ""
            for each, weight in place.above:
                queues.setdefault(each, QueueFacts(each, weight=weight, parent=parent))
                parent = each
            queues[name] = replace(queues[name], parent=parent, weight=place.weight)
