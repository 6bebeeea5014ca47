"""Reclaim between queues: which queue may evict pods of which other queue.

Evictions that were decided but have not finished count as done. The reclaiming queue is charged for
the pods that will start, the other queue is credited with the pods that will end. Without this,
concurrent claims would each evict what only one of them is entitled to.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from gangline.scheduler.queueing.queue_tree import QueueAttributes, QueueTree, Vector
from gangline.scheduler.types.types import PodInfo, Request

TOLERANCE = 1 + 1e-9
"""Tolerance: shares are floating-point fractions."""


class ReclaimState:
    """What queues will use besides their usage, and what they are about to release."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self._expected: dict[str, tuple[str, Request]] = {}
        """Queue and request of each gang that will start, by its name."""
        self._leaving: dict[str, Counter[str]] = defaultdict(Counter)

    def add_expected(self, name: str, queue: str, asked: Request) -> None:
        """Charge a gang's queue for the resources that are being freed for it."""
        self._expected[name] = (queue, asked)

    def remove_expected(self, name: str) -> None:
        """Remove the charge: the gang has started, and its usage is known."""
        self._expected.pop(name, None)

    def add_leaving(self, queue: str, pod: PodInfo) -> None:
        """Count a pod as ended."""
        self._leaving[queue].update(dict(pod.shape.request))

    def budget_for(self, queue: str, asked: Request) -> "ReclaimBudget":
        """Return what a queue may reclaim for this request."""
        more = {name: np.zeros(len(self.tree.columns)) for name in self.tree.queues}
        less = {name: np.zeros(len(self.tree.columns)) for name in self.tree.queues}
        for own, request in self._expected.values():
            self._add(more, own, self.tree.request_vector(request))
        for own, amounts in self._leaving.items():
            self._add(less, own, self.tree.vector(amounts))
        return ReclaimBudget(self.tree, (more, less), queue, self.tree.request_vector(asked))

    def _add(self, change: dict[str, Vector], queue: str, amount: Vector) -> None:
        attributes = self.tree.queues.get(queue)
        for each in attributes.path() if attributes is not None else ():
            change[each.info.name] = change[each.info.name] + amount


class ReclaimBudget:
    """What one queue reclaims from others, one eviction unit after the other."""

    def __init__(
        self,
        tree: QueueTree,
        outlook: tuple[dict[str, Vector], dict[str, Vector]],
        queue: str,
        asked: Vector,
    ) -> None:
        self._tree = tree
        self._more, self._less = outlook
        """Amounts that each queue will use besides its usage, and that it will release."""
        self._queue = queue
        self._asked = asked
        self._claim_results: dict[str, bool] = {}

    def may_reclaim(self, other: str, pods: Iterable[PodInfo]) -> bool:
        """Return whether these pods of another queue may be evicted: it exceeds its fair share and
        owes it.
        """
        if other not in self._claim_results:
            self._claim_results[other] = self._may_claim(other)
        return self._claim_results[other] and self._owes(other, self._amount(pods))

    def reclaim(self, other: str, pods: Iterable[PodInfo]) -> None:
        """Count pods of another queue as evicted."""
        amount = self._amount(pods)
        for attributes in self._tree.queues[other].path():
            name = attributes.info.name
            self._less[name] = self._less[name] + amount

    def _may_claim(self, other: str) -> bool:
        """Return whether the queue and its ancestors, up to the common one, stay within their fair
        shares.
        """
        own_path, other_path = self._diverging_paths(other)
        # Usage of the root itself, where no job belongs, is never reclaimed.
        if not other_path or not all(attributes.info.reclaimable for attributes in other_path):
            return False
        for attributes in own_path:
            # Its own terminating pods count until they have ended.
            used = attributes.used + self._more[attributes.info.name] + self._asked
            if (used > attributes.fair_share * TOLERANCE)[self._asked > 0].any():
                return False
        return True

    def _owes(self, other: str, amount: Vector) -> bool:
        """Return whether a queue exceeds its fair share, and keeps its guarantee without these
        pods.
        """
        relevant = (self._asked > 0) & (amount > 0)
        if not relevant.any():
            return False
        # Every queue below the common ancestor must exceed its fair share of the same resource: a
        # queue within its share pays for no sibling.
        over = relevant
        for attributes in self._diverging_paths(other)[1]:
            # Pods that are expected to start count once they have started.
            left = attributes.used - self._less[attributes.info.name]
            over = over & (left > attributes.fair_share * TOLERANCE)
            guarantee = self._tree.vector(dict(attributes.info.guarantee))
            if ((left - amount < guarantee) & (guarantee > 0))[relevant].any():
                return False
        return bool(over.any())

    def _amount(self, pods: Iterable[PodInfo]) -> Vector:
        total: Counter[str] = Counter()
        for pod in pods:
            total.update(dict(pod.shape.request))
        return self._tree.vector(total)

    def _diverging_paths(self, other: str) -> tuple[list[QueueAttributes], list[QueueAttributes]]:
        """Return the paths of the two queues below their common ancestor."""
        own_path = list(self._tree.queues[self._queue].path())
        other_path = list(self._tree.queues[other].path())
        shared = {attributes.info.name for attributes in own_path} & {
            a.info.name for a in other_path
        }
        return (
            [attributes for attributes in own_path if attributes.info.name not in shared],
            [attributes for attributes in other_path if attributes.info.name not in shared],
        )
