"""Oracle of queues: limits and fair shares by the documented rules, computed in a simple, slow way.

Each resource is computed by itself, and each level of the hierarchy after its parent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gangline.api.volcano.scheduling import DEFAULT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.types import (
    HOST_PORT_PREFIX,
    CycleResult,
    NodeInfo,
    PodInfo,
    QueueInfo,
)
from unit.scheduler.oracle.node_groups import meets_all, required_terms_of
from unit.scheduler.oracle.placement import filter_messages

_HALVINGS = 100
_SMALL = 1e-14
"""Relative difference below which the bisection ends."""
_ENDLESS = float("inf")
TOLERANCE = 1e-9
"""Relative tolerance of comparisons: shares are floating-point fractions."""


@dataclass(slots=True)
class QueueFigures:
    """Amounts of one queue and its descendants, by resource."""

    used: Counter[str] = field(default_factory=Counter)
    requested: Counter[str] = field(default_factory=Counter)
    """Usage and pending requests."""
    limit: dict[str, float] = field(default_factory=dict)
    fair_share: dict[str, float] = field(default_factory=dict)


class QueueOracle:
    """The amounts of all queues."""

    def __init__(self, state: SchedulerCache) -> None:
        self._queues: dict[str, QueueInfo] = {
            name: queue for name, queue in state.queues.items() if name != "root"
        }
        self._queues.setdefault(DEFAULT_QUEUE, QueueInfo(DEFAULT_QUEUE))
        self.figures: dict[str, QueueFigures] = {name: QueueFigures() for name in self._queues}
        self._names = {
            name for node in state.nodes.infos if node is not None for name, _ in node.allocatable
        }
        self._names |= {name for pod in state.pods.values() for name, _ in pod.shape.request}
        self._names = {n for n in self._names if n != "pods" and not n.startswith(HOST_PORT_PREFIX)}
        self._count(state)
        self._open = list(_open_nodes(state))
        self._pools = {name: self._pool(state, name) for name in self._queues}
        total = self._obtainable(state)
        self._divide("", total, dict.fromkeys(self._names, _ENDLESS), total)

    def parent(self, name: str) -> str:
        """Return the parent of a queue; empty for top queues and for queues in a cycle."""
        above, seen = self._queues[name].parent, [name]
        while above in self._queues and above not in seen:
            seen.append(above)
            above = self._queues[above].parent
        parent = self._queues[name].parent
        return parent if parent in self._queues and above != name else ""

    def path(self, name: str) -> list[str]:
        """Return a queue and its ancestors."""
        found = [name]
        while (above := self.parent(found[-1])) and above not in found:
            found.append(above)
        return found

    def _count(self, state: SchedulerCache) -> None:
        alike = Counter(
            (queue_of(state, pod), pod.shape.request, pod.holds_resources)
            for pod in state.pods.values()
            if pod.holds_resources or pod.is_pending
        )
        for (queue, request, runs), count in alike.items():
            total = {name: count * amount for name, amount in request}
            for name in self.path(queue) if queue in self._queues else ():
                self.figures[name].requested.update(total)
                if runs:
                    self.figures[name].used.update(total)

    def _obtainable(self, state: SchedulerCache) -> dict[str, float]:
        usable = {node.name for node in self._open}
        known = {n.name for n in state.nodes.infos if n is not None}
        total: Counter[str] = Counter()
        for node in state.nodes.infos:
            if node is not None and node.name in usable:
                total.update(dict(node.allocatable))
        outside: Counter[str] = Counter()
        for pod in state.pods.values():
            if not pod.holds_resources:
                continue
            request = dict(pod.shape.request)
            mine = queue_of(state, pod) in self._queues
            if pod.node in known and pod.node not in usable:
                total.update(request)
            if pod.node in known:
                outside.update(request)
            if mine:
                outside.subtract(request)
        return {name: max(0, total[name] - max(0, outside[name])) for name in self._names}

    def _pool(self, state: SchedulerCache, queue: str) -> dict[str, float]:
        """Return the capacity of the nodes that match a queue's node terms."""
        fences = required_terms_of(state, queue)
        there: Counter[str] = Counter()
        for node in self._open:
            if meets_all(fences, node):
                there.update(dict(node.allocatable))
        return {name: there[name] if fences else _ENDLESS for name in self._names}

    def _divide(
        self,
        above: str,
        total: Mapping[str, float],
        ceiling: Mapping[str, float],
        everything: Mapping[str, float],
    ) -> None:
        children = [name for name in sorted(self._queues) if self.parent(name) == above]
        for name in self._names if children else ():
            limits = {child: self._limit(child, name) for child in children}
            kept = {
                child: min(limits[child], dict(self._queues[child].guarantee).get(name, 0))
                for child in children
            }
            for child in children:
                others = sum(kept.values()) - kept[child]
                bound = min(ceiling[name], everything[name]) - others if others else ceiling[name]
                self.figures[child].limit[name] = max(0.0, min(limits[child], bound))
            parts = self._parts(children, name, total[name], kept)
            for child in children:
                self.figures[child].fair_share[name] = parts[child]
        for child in children:
            figures = self.figures[child]
            within = {name: min(figures.fair_share[name], total[name]) for name in self._names}
            self._divide(child, within, figures.limit, everything)

    def _limit(self, queue: str, name: str) -> float:
        stated = dict(self._queues[queue].capability).get(name)
        if stated is None or (stated == 0 and name in ("cpu", "memory")):
            return _ENDLESS
        return stated

    def _parts(
        self, children: list[str], name: str, total: float, kept: Mapping[str, float]
    ) -> dict[str, float]:
        """Divide by weight: each queue gets at least its floor, and no more than it wants."""
        least, most = {}, {}
        for child in children:
            figures, facts = self.figures[child], self._queues[child]
            needed = min(figures.requested[name], figures.limit[name], self._pools[child][name])
            deserved = min(dict(facts.deserved).get(name, 0), total, needed)
            least[child] = max(min(kept[child], figures.limit[name]), deserved)
            stated = name in dict(facts.deserved)
            most[child] = least[child] if stated else max(needed, least[child])
        if sum(most.values()) <= total:
            return most
        low, high = 0.0, max(most.values())
        for _ in range(_HALVINGS):
            level = (low + high) / 2
            given = self._at(level, least, most)
            low, high = (level, high) if sum(given.values()) <= total else (low, level)
            if high - low <= high * _SMALL:
                break
        return self._at(low, least, most)

    def _at(
        self, level: float, least: Mapping[str, float], most: Mapping[str, float]
    ) -> dict[str, float]:
        return {
            child: min(most[child], max(least[child], level * max(1, self._queues[child].weight)))
            for child in least
        }


def _open_nodes(state: SchedulerCache) -> Iterator[NodeInfo]:
    """Yield the nodes that queues can use: tainted ones only if pods of this scheduler may use
    them, or do.
    """
    waiting = {pod.shape.constraints for pod in state.pods.values() if pod.is_pending}
    ours = {pod.node for pod in state.pods.values() if pod.is_ours and pod.holds_resources}
    for node in state.nodes.infos:
        if node is None or not node.ready or node.unschedulable:
            continue
        tainted = any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.taints)
        if (
            not tainted
            or node.name in ours
            or any(not list(filter_messages(each, node)) for each in waiting)
        ):
            yield node


def queue_of(state: SchedulerCache, pod: PodInfo) -> str | None:
    """Return the queue that a pod is charged to; None: none."""
    if pod.group is None:
        return DEFAULT_QUEUE if pod.is_ours else None
    group = state.groups.get(pod.group)
    return group.queue if group is not None else None


def queue_violations(state: SchedulerCache, decision: CycleResult) -> Iterator[str]:
    """Yield the queues that would exceed their limits."""
    if not decision.bindings:
        return
    books = QueueOracle(state)
    grown: dict[str, Counter[str]] = defaultdict(Counter)
    for binding in decision.bindings:
        pod = state.pods[binding.pod]
        queue = queue_of(state, pod)
        members = state.members.get(pod.group, {}) if pod.group is not None else {}
        if queue not in books.figures and any(member.node for member in members.values()):
            queue = DEFAULT_QUEUE  # the queue of a running gang was deleted
        if queue is None or queue not in books.figures:
            yield f"{pod.key} is bound and charged to no queue"
            continue
        for name in books.path(queue):
            grown[name].update({n: amount for n, amount in pod.shape.request if amount})
            is_new = pod.group is None or not any(
                member.node is not None for member in state.members[pod.group].values()
            )
            if is_new and not state.queues.get(name, QueueInfo(name)).open:
                yield f"{pod.key} is bound and queue {name} is closed"
    for name, amounts in sorted(grown.items()):
        figures = books.figures[name]
        for resource, amount in sorted(amounts.items()):
            most = figures.limit.get(resource, _ENDLESS)
            if figures.used[resource] + amount > most * (1 + TOLERANCE):
                uses = figures.used[resource] + amount
                yield f"queue {name} may use {most:g} {resource}, it would use {uses}"
