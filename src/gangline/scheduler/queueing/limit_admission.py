"""Admission by the limits of queues, for gangs whose pods do not exist yet.

A controller that waits for the phase Inqueue creates pods only then. So a gang that states its
``minResources`` is judged by them. Without them it is admitted, and its pods are judged by the
cycle.
"""

from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.quota import missing_pods_request
from gangline.scheduler.queueing import admission
from gangline.scheduler.queueing.queue_tree import QueueTree
from gangline.scheduler.types.types import PendingReason, PodGroupInfo


def check_queue_limit(state: SchedulerCache, group: PodGroupInfo) -> PendingReason | None:
    """Return the reason if the limit of a gang's queue does not allow its missing pods."""
    if not group.min_resources or not any(
        queue.capability or queue.guarantee for queue in state.queues.values()
    ):
        return None
    asked = missing_pods_request(group, state.members.get(group.key, {}).values())
    if not asked or group.queue not in state.queues:
        return None
    tree = QueueTree.of(state)
    queue = tree.blocking_queue(group.queue, tree.vector(dict(asked)))
    return admission.over_queue_limit(group, queue.info.name) if queue is not None else None
