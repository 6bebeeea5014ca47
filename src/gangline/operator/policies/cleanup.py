"""What is removed when a job has finished, by its clean pod policy.

The same for every way to finish. Services go with their pods; under None everything stays, also
what still runs, as upstream documents it.
"""

from collections.abc import Iterable

from gangline.operator.job import CleanPodPolicy
from gangline.operator.replicas import Pod, Service


def pods_to_remove(policy: CleanPodPolicy, pods: Iterable[Pod]) -> list[Pod]:
    """List the pods that the policy removes from a finished job."""
    match policy:
        case CleanPodPolicy.ALL:
            return list(pods)
        case CleanPodPolicy.RUNNING:
            return [pod for pod in pods if not pod.over]
        case CleanPodPolicy.NONE:
            return []


def services_to_remove(
    policy: CleanPodPolicy, services: Iterable[Service], pods: Iterable[Pod]
) -> list[Service]:
    """List the services that go: all that do not belong to a pod which the policy keeps.

    Deduced from what is there rather than from what was deleted, so that a service whose pod
    somebody else removed is not left behind.
    """
    if policy is CleanPodPolicy.NONE:
        return []
    removed = {pod.name for pod in pods_to_remove(policy, pods)}
    kept = {pod.name for pod in pods} - removed
    return [service for service in services if service.metadata.name not in kept]
