"""Forced deletion of pods that cannot finish terminating because their node is lost.

Upstream waits for such pods for ever, and with them the job. They are deleted by force only if
their node is lost, and only after their grace period and a margin. On a node that responds, a slow
process may still use its GPU, its port and its files, and a second process of the same rank would
do more harm than waiting.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gangline.operator.replicas import ObservedPod


def time_to_force_delete_pod(
    pod: ObservedPod, lost_nodes: frozenset[str], grace: timedelta, now: datetime
) -> timedelta | None:
    """Return the time until the pod may be deleted by force; None if it must not be."""
    gone_by = pod.metadata.deletion_timestamp
    if gone_by is None or pod.spec.node_name not in lost_nodes:
        return None
    return gone_by + grace - now


def overdue_pods(
    pods: Iterable[ObservedPod], lost_nodes: frozenset[str], grace: timedelta, now: datetime
) -> list[ObservedPod]:
    """List the pods that may be deleted by force now."""
    zero = timedelta(0)
    due = ((pod, time_to_force_delete_pod(pod, lost_nodes, grace, now)) for pod in pods)
    return [pod for pod, left in due if left is not None and left <= zero]
