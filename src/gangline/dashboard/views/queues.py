"""Queues as a tree: limits, shares and usage of each, and the order of its line."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from gangline.api.volcano.scheduling import ROOT_QUEUE, Queue
from gangline.dashboard.rights import GROUP_KIND
from gangline.dashboard.views.base import Observation, View
from gangline.dashboard.views.job import expected_start

MAX_LINE = 100
"""Places of a line that are shown; the others are counted."""


class LinePlace(View, frozen=True):
    place: int
    name: str = ""
    """``namespace/name`` of the job or pod group; empty if the viewer may not list it."""
    path: str = ""
    message: str = ""
    expected_start: str = ""


class QueueNode(View, frozen=True):
    """A queue with those below it."""

    name: str
    state: str
    depth: int
    weight: int
    priority: int
    running: int
    pending: int
    inqueue: int
    deserved: tuple[tuple[str, str], ...] = ()
    guarantee: tuple[tuple[str, str], ...] = ()
    capability: tuple[tuple[str, str], ...] = ()
    allocated: tuple[tuple[str, str], ...] = ()
    used: str = ""
    requested: str = ""
    fair_share: str = ""
    most: str = ""
    share: float | None = None
    """Used fraction of its fair share; None until the scheduler's figures are read."""
    line: tuple[LinePlace, ...] = ()
    further: int = 0
    """Gangs in its line that are not shown."""


class QueuesView(View, frozen=True):
    """All queues, parents before their children."""

    queues: tuple[QueueNode, ...]
    is_pending: bool = False
    """True until the scheduler's figures are read."""


def queues_view(seen: Observation, reports: Mapping[str, Any] | None) -> QueuesView:
    """Return all queues; ``reports`` has ``QueueReport`` by queue, None until it is read."""
    children: defaultdict[str, list[Queue]] = defaultdict(list)
    queues = seen.cluster.queues
    for queue in sorted(queues.values(), key=lambda queue: queue.metadata.name):
        if queue.metadata.name == ROOT_QUEUE:
            continue
        parent = queue.spec.parent or ROOT_QUEUE
        children[parent if parent in queues else ROOT_QUEUE].append(queue)
    nodes = tuple(
        _node(seen, queue, depth, reports) for queue, depth in _walk(children, ROOT_QUEUE, 0)
    )
    return QueuesView(nodes, is_pending=reports is None)


def _walk(
    children: Mapping[str, list[Queue]], parent: str, depth: int
) -> Iterator[tuple[Queue, int]]:
    """Yield queues with their depth; a circle of parents is not reached from the root."""
    for queue in children.get(parent, ()):
        yield queue, depth
        yield from _walk(children, queue.metadata.name, depth + 1)


def _node(
    seen: Observation, queue: Queue, depth: int, reports: Mapping[str, Any] | None
) -> QueueNode:
    spec, status = queue.spec, queue.status
    report = (reports or {}).get(queue.metadata.name)
    line = report.line if report else ()
    usage = report.usage if report else None
    return QueueNode.of(
        usage,
        name=queue.metadata.name,
        state=status.state or "Open",
        depth=depth,
        weight=1 if spec.weight is None else spec.weight,
        priority=spec.priority,
        running=status.running,
        pending=status.pending,
        inqueue=status.inqueue,
        deserved=_amounts(spec.deserved),
        guarantee=_amounts(spec.guarantee.resource if spec.guarantee else {}),
        capability=_amounts(spec.capability),
        allocated=_amounts(status.allocated),
        line=tuple(_place(seen, number, gang) for number, gang in enumerate(line[:MAX_LINE], 1)),
        further=max(0, len(line) - MAX_LINE),
        fair_share=usage.entitled if usage else "",
    )


def _place(seen: Observation, number: int, gang: Any) -> LinePlace:
    namespace, _, name = gang.name.partition("/")
    if not seen.scope.sees(GROUP_KIND, namespace):
        return LinePlace(number)
    group = seen.cluster.groups.get((namespace, name))
    owner = group.metadata.controller if group else None
    job = seen.cluster.by_uid.get(owner.uid) if owner else None
    return LinePlace(
        place=number,
        name=f"{namespace}/{owner.name}" if owner else gang.name,
        path=job.path if job else "",
        message=gang.message,
        expected_start=expected_start([group]) if group else "",
    )


def _amounts(amounts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(amount)) for name, amount in sorted(amounts.items()))
