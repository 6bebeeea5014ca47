"""Plain pods that preemption could evict: a gang may count on their resources some time.

A pod without a gang and without a Job runs until somebody deletes it. A gang that cannot start
beside such pods waits in vain, unless it may evict them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.preemption.preempt import EvictionPolicy
from gangline.scheduler.preemption.victim_sets import is_evictable
from gangline.scheduler.queueing.gangs import PendingGang
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import PodInfo

NO_PRIORITY = float("-inf")
ANY_PRIORITY = float("inf")


@dataclass(slots=True)
class EvictablePlainPods:
    """Finds these pods, for one cycle."""

    state: SchedulerCache
    tree: QueueTree
    policy: EvictionPolicy
    _candidates: list[PodInfo] | None = None

    def priority_bound(self, gang: PendingGang) -> float:
        """Return the priority below which a gang may evict plain pods; -inf: none.

        Gangs with equal bounds may evict the same pods.
        """
        if not self.state.nodes.lasting_pods or not all(pod.may_preempt for pod in gang.pending):
            return NO_PRIORITY
        queue = self.state.usage.queue_of(None)
        if gang.queue == queue:
            return gang.priority if self.policy.preempt else NO_PRIORITY
        reclaims = self.policy.reclaim and self._may_reclaim(gang, queue)
        return ANY_PRIORITY if reclaims else NO_PRIORITY

    def below(self, bound: float) -> Iterable[PodInfo]:
        """Return the plain pods that gangs with this bound may evict."""
        if bound == NO_PRIORITY:
            return ()
        if self._candidates is None:
            lasting = self.state.nodes.lasting_pods.values()
            self._candidates = [pod for pod in lasting if pod.preemptable and is_evictable(pod)]
        return [pod for pod in self._candidates if pod.priority < bound]

    def _may_reclaim(self, gang: PendingGang, other: str) -> bool:
        """Return whether the gang's queue stays within its fair share, and the other exceeds it."""
        own_path = list(self.tree.queues[gang.queue].path())
        other_path = list(self.tree.queues[other].path())
        shared = {queue.info.name for queue in own_path} & {q.info.name for q in other_path}
        amount = self.tree.request_vector(gang.requested)
        below = [queue for queue in other_path if queue.info.name not in shared]
        if not below or not all(queue.info.reclaimable for queue in below):
            return False
        if any(
            queue.would_exceed_fair_share(amount)
            for queue in own_path
            if queue.info.name not in shared
        ):
            return False
        asked = amount > 0
        return all((queue.used > queue.fair_share)[asked].any() for queue in below)
