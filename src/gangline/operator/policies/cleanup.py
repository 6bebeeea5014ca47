"""Deletions of a finished job by its clean pod policy.

They are the same for success and failure. Services are deleted with their pods. Under None
everything stays, also running pods, as upstream documents it.
"""

from collections.abc import Iterable

from gangline.operator.job import CleanPodPolicy
from gangline.operator.replicas import ObservedPod, ObservedService


def pods_to_remove(policy: CleanPodPolicy, pods: Iterable[ObservedPod]) -> list[ObservedPod]:
    """List the pods of a finished job that the policy deletes."""
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
    kept = {pod.name for pod in pods} - removed
    return [service for service in services if service.metadata.name not in kept]
