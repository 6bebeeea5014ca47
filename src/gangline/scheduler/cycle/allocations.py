"""Allocations of one cycle: bindings, what they add to the usage of queues, and extra pods.

Pods beyond a gang's minimum are placed one by one, or subgroup by subgroup, in turn with other
gangs.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Set

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cycle.diagnosis import queue_limit
from gangline.scheduler.placement.colocation import place_on_models_in_use
from gangline.scheduler.placement.gang import (
    group_by_shape,
    next_subgroup,
    place_subgroup,
    rows_in_allowed_domains,
    unavailable_message,
)
from gangline.scheduler.placement.scratch import Placement, ScratchAllocation
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.order import NamespaceShares, QueueEntry, SchedulingOrder
from gangline.scheduler.queueing.queue_tree import QueueTree, dominant_share
from gangline.scheduler.types import (
    GroupKey,
    PendingReason,
    PodBinding,
    PodInfo,
    PodKey,
    PodShape,
)


class Allocations:
    """What the cycle has allocated for good."""

    def __init__(
        self, state: SchedulerCache, tree: QueueTree, shares: NamespaceShares | None = None
    ) -> None:
        self.bindings: list[PodBinding] = []
        self._state, self._tree, self._shares = state, tree, shares
        self._rows: dict[str, set[int]] = {}
        """Rows of gangs that have a network rule, and of pods with devices."""
        self._given: dict[GroupKey, Counter[str]] = {}
        """Allocated amounts by gang."""
        self._bound: set[str] = set()

    def bind(self, gang: PendingGang, placements: list[Placement]) -> set[PodKey] | None:
        """Allocate placements for good; return the keys of the pods.

        Pods that do not exist yet only use up their amounts: the next cycle reserves them.

        Returns:
            None: a limit of the queue does not allow it. Every path to a node leads through here.
        """
        amounts: dict[str, int] = {}
        for placement in placements:
            for name, amount in placement.pods[0].shape.request:
                amounts[name] = amounts.get(name, 0) + amount * len(placement.pods)
        total = self._tree.request_vector(tuple(sorted(amounts.items())))
        if self._tree.blocking_queue(gang.queue, total) is not None:
            return None
        bound: set[PodKey] = set()
        if placements:
            self._bound.add(gang.id)
        for placement in placements:
            node = self._state.nodes.name_of(placement.row)
            pods = placement.pods
            self.bindings += [
                PodBinding(pod.key, pod.uid, node, gang.group)
                for pod in pods
                if not pod.is_expected
            ]
            bound.update([pod.key for pod in pods])
            if gang.network is not None or placement.demand.wants_device:
                self._rows.setdefault(gang.id, set()).add(placement.row)
        self._tree.add_usage(gang.queue, total)
        if self._shares is not None:
            self._shares.add_usage(gang, total)
        if gang.group is not None:
            self._given.setdefault(gang.group, Counter()).update(amounts)
        return bound

    def has_bound(self, gang: str) -> bool:
        """Return whether the cycle has bound pods of a gang."""
        return gang in self._bound

    def rows_of(self, gang: PendingGang) -> Set[int]:
        """Return the rows of a gang, as far as they matter for its other pods."""
        return self._rows.get(gang.id, frozenset())

    def share_of(self, gang: PendingGang) -> float:
        """Return the share of the cluster that a gang uses, including this cycle's allocations."""
        if gang.group is None:
            return 0.0
        used = self._state.usage.by_group.get(gang.group, Counter())
        amounts = used + self._given.get(gang.group, Counter())
        return dominant_share(self._tree.vector(amounts), self._tree.total)


class ExtraPods:
    """Serves entries for extra pods."""

    def __init__(
        self,
        scratch: ScratchAllocation,
        tree: QueueTree,
        line: SchedulingOrder,
        grants: Allocations,
        is_evicted: Callable[[str], bool],
    ) -> None:
        self._scratch, self._tree, self._line, self._grants = scratch, tree, line, grants
        self._is_evicted = is_evicted

    def serve(self, entry: QueueEntry) -> list[PendingReason]:
        """Place one pod or subgroup, or all extra pods if no other entry is left.

        Returns:
            Why the pods that found no node are pending.
        """
        gang = entry.gang
        if self._is_evicted(gang.id):
            return _pending_reasons(entry.remaining, messages.EVICTED)
        if gang.subgroups:
            refused = self._serve_part(entry)
        else:
            refused = []
            count = len(entry.remaining) if self._line.empty else 1
            pods = [entry.remaining.popleft() for _ in range(count)]
            for shape, same_shape in group_by_shape(pods).items():
                refused += self._place(entry, shape, same_shape)
        if entry.remaining:
            entry.share = self._grants.share_of(gang)
            self._line.requeue(entry)
        return refused

    def _serve_part(self, entry: QueueEntry) -> list[PendingReason]:
        """Place an extra subgroup, completely or not at all; or one pod without a subgroup."""
        gang, refused = entry.gang, []
        subgroup, pods = next_subgroup(gang, entry.remaining)
        entry.remaining = deque(pod for pod in entry.remaining if pod not in pods)
        amount = self._tree.vector(messages.total_request(pods))
        mark = self._scratch.mark()
        if (queue := self._tree.blocking_queue(gang.queue, amount)) is not None:
            refused = _pending_reasons(
                pods, messages.queue_limit_message(queue_limit(self._tree, queue, amount))
            )
        elif unplaced := place_subgroup(self._scratch, gang, subgroup, pods):
            refused = _pending_reasons(unplaced, self._unavailable_message(unplaced[0]))
        self._grants.bind(gang, self._scratch.since(mark))
        return refused

    def _place(
        self, entry: QueueEntry, shape: PodShape, pods: list[PodInfo]
    ) -> list[PendingReason]:
        """Place pods of one shape, as many as fit and the queue allows."""
        gang = entry.gang
        one = self._tree.request_vector(shape.request)
        if shape in entry.refused_shapes:
            return _pending_reasons(pods, self._unavailable_message(pods[0]))
        while pods and self._tree.blocking_queue(gang.queue, one) is None:
            mark = self._scratch.mark()
            count = self._tree.allowed_count(gang.queue, one, len(pods))
            rows = self._grants.rows_of(gang)
            self._scratch.within = rows_in_allowed_domains(self._scratch.nodes, gang, rows)
            unplaced = place_on_models_in_use(self._scratch, gang, shape, pods[:count], rows)
            self._scratch.within = None
            self._grants.bind(gang, self._scratch.since(mark))
            pods = [*unplaced, *pods[count:]]
            if unplaced:
                # Volumes and devices depend on the claims of each pod, not on its shape.
                if not any(map(self._scratch.matches_claims, unplaced)):
                    entry.refused_shapes |= {shape}
                return _pending_reasons(pods, self._unavailable_message(pods[0]))
        if not pods:
            return []
        queue = self._tree.blocking_queue(gang.queue, one)
        if queue is not None:
            return _pending_reasons(
                pods, messages.queue_limit_message(queue_limit(self._tree, queue, one))
            )
        return _pending_reasons(pods, self._unavailable_message(pods[0]))

    def _unavailable_message(self, pod: PodInfo) -> str:
        return messages.extra_pod_message(unavailable_message(self._scratch, pod))


def _pending_reasons(pods: Iterable[PodInfo], why: str) -> list[PendingReason]:
    return [PendingReason(messages.NOT_ENOUGH_RESOURCES, "", tuple((pod.key, why) for pod in pods))]
