"""Allocations of one cycle: bindings, and what they add to the usage of queues."""

from collections import Counter
from collections.abc import Iterable, Set

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.placement.scratch import Placement
from gangline.scheduler.queueing.fair_share import NamespaceShares
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.queue_tree import QueueTree, dominant_share
from gangline.scheduler.types.types import GroupKey, PodBinding, PodKey


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

    def bind(self, gang: PendingGang, placements: Iterable[Placement]) -> set[PodKey]:
        """Allocate placements for good; return the keys of the pods.

        Pods that do not exist yet only use up their amounts: the next cycle reserves them.
        """
        bound: set[PodKey] = set()
        if placements := list(placements):
            self._bound.add(gang.id)
        amounts: dict[str, int] = {}
        for placement in placements:
            node = self._state.nodes.name_of(placement.row)
            pods = placement.pods
            self.bindings += [
                PodBinding(pod.key, pod.uid, node, gang.group)
                for pod in pods
                if not pod.is_expected
            ]
            bound.update([pod.key for pod in pods])
            for name, amount in pods[0].shape.request:
                amounts[name] = amounts.get(name, 0) + amount * len(pods)
            if gang.network is not None or placement.demand.wants_device:
                self._rows.setdefault(gang.id, set()).add(placement.row)
        total = self._tree.request_vector(tuple(sorted(amounts.items())))
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
