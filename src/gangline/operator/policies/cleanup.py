"""Deletions of finished jobs and of stuck pods, and the deadlines of jobs.

- The clean pod policy is applied in the same way after success and failure. Services are deleted
  with their pods. Under None everything stays, also running pods, as upstream documents it.
- Deadlines and the TTL are computed as remaining time, so that the engine can requeue the job for
  that moment: no other event may ever occur.
- Pods that cannot finish terminating are deleted by force only if their node is lost, and only
  after their grace period and a margin; upstream waits for ever. On a node that responds, a slow
  process may still use its GPU, its port and its files, and a second process of the same rank would
  do more harm than waiting.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from gangline.operator.model.job import CleanPodPolicy
from gangline.operator.model.replicas import ObservedPod, ObservedService


def pods_to_remove(policy: CleanPodPolicy, pods: Iterable[ObservedPod]) -> list[ObservedPod]:
    match policy:
        case CleanPodPolicy.ALL:
            return list(pods)
        case CleanPodPolicy.RUNNING:
            return [pod for pod in pods if not pod.is_finished]
        case CleanPodPolicy.NONE:
            return []


def services_to_remove(
    policy: CleanPodPolicy, services: Iterable[ObservedService], pods: Iterable[ObservedPod]
) -> list[ObservedService]:
    """List the services to delete: all without a pod that the policy retains.

    This follows from the existing pods rather than from the deleted ones, so a service is also
    deleted if a user deleted its pod.
    """
    if policy is CleanPodPolicy.NONE:
        return []
    removed = {pod.name for pod in pods_to_remove(policy, pods)}
    retained = {pod.name for pod in pods} - removed
    return [service for service in services if service.metadata.name not in retained]


def time_left(start: datetime | None, limit: timedelta | None, now: datetime) -> timedelta | None:
    """Return the time until ``limit`` after ``start``; zero or less once it has passed.

    None if there is no limit or no start.
    """
    if start is None or limit is None:
        return None
    return start + limit - now


def has_passed(remaining: timedelta | None) -> bool:
    return remaining is not None and remaining <= timedelta(0)


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
    due = ((pod, time_to_force_delete_pod(pod, lost_nodes, grace, now)) for pod in pods)
    return [pod for pod, left in due if has_passed(left)]
