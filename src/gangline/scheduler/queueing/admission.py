"""Reasons of gangs that cannot be tried: the group, the queue or some pods are missing."""

from collections.abc import Iterable

from gangline.scheduler.queueing import messages
from gangline.scheduler.types.types import (
    GroupKey,
    PendingReason,
    PodGroupInfo,
    PodInfo,
    SubgroupRule,
)


def group_not_found(key: GroupKey, pods: Iterable[PodInfo]) -> PendingReason:
    message = (
        f"Pod group {key!r} does not exist: the pods wait until it is created, since only the "
        "group states how many must start together."
    )
    return _pending_reason(messages.NO_SUCH_GROUP, message, pods, key)


def queue_not_found(group: PodGroupInfo, pods: Iterable[PodInfo]) -> PendingReason:
    message = (
        f"Queue {group.queue!r} does not exist: create it, or name an existing one in the "
        "group's spec.queue."
    )
    return _pending_reason(messages.NO_SUCH_QUEUE, message, pods, group.key)


def queue_not_leaf(group: PodGroupInfo, pods: Iterable[PodInfo]) -> PendingReason:
    message = (
        f"Queue {group.queue!r} has child queues and takes no jobs itself: name one of them "
        "in the group's spec.queue."
    )
    return _pending_reason(messages.QUEUE_NOT_LEAF, message, pods, group.key)


def queue_closed(group: PodGroupInfo, queue: str, pods: Iterable[PodInfo]) -> PendingReason:
    message = f"Queue {queue!r} is closed: open it, or move the job to another queue."
    return _pending_reason(messages.QUEUE_CLOSED, message, pods, group.key)


def over_quota(group: PodGroupInfo, figures: str, pods: Iterable[PodInfo]) -> PendingReason:
    """A namespace's quota does not admit all pods that must start together."""
    message = (
        f"The namespace's quota does not admit the complete gang: {figures}. "
        "It starts when others of the namespace end, or the quota is raised."
    )
    return _pending_reason(messages.QUOTA_EXCEEDED, message, pods, group.key)


def over_queue_limit(group: PodGroupInfo, queue: str) -> PendingReason:
    """The limit of a queue does not allow the pods that are still to be created."""
    message = (
        f"Queue {queue!r} is at its limit: the gang is admitted when jobs of the queue end, or its "
        "limit is raised."
    )
    return _pending_reason(messages.QUEUE_LIMIT, message, (), group.key)


def resource_claims(pods: Iterable[PodInfo], key: GroupKey | None = None) -> PendingReason:
    """Pods have claims of Dynamic Resource Allocation, which this scheduler does not allocate."""
    message = (
        "Claims of devices (spec.resourceClaims) are not supported by this scheduler: request the "
        "devices as extended resources (such as nvidia.com/gpu), or leave the pod to a scheduler "
        "that allocates claims (spec.schedulerName)."
    )
    reasons = tuple((pod.key, message) for pod in pods)
    return PendingReason(messages.RESOURCE_CLAIMS, message, reasons, key)


def too_few_pods(group: PodGroupInfo, there: int, pods: Iterable[PodInfo]) -> PendingReason:
    message = (
        f"{there} of the {group.min_member} pods that must start together exist: "
        f"{group.min_member - there} still to be created."
    )
    return _pending_reason(messages.NOT_ENOUGH_PODS, message, pods, group.key)


def too_few_pods_of_role(
    group: PodGroupInfo, role: str, lacking: int, pods: Iterable[PodInfo]
) -> PendingReason:
    message = f"The gang lacks {lacking} pod(s) of the role {role!r}: still to be created."
    return _pending_reason(messages.NOT_ENOUGH_PODS_OF_ROLE, message, pods, group.key)


def too_few_subgroups(
    group: PodGroupInfo, rule: SubgroupRule, able: int, pods: Iterable[PodInfo]
) -> PendingReason:
    """Existing pods complete fewer subgroups than the minimum."""
    message = (
        f"{able} of the {rule.min_subgroups} subgroups {rule.name!r} that must start have their "
        f"{rule.size} pods: the others are still to be created."
    )
    return _pending_reason(messages.NOT_ENOUGH_PODS, message, pods, group.key)


def _pending_reason(
    reason: str, message: str, pods: Iterable[PodInfo], key: GroupKey
) -> PendingReason:
    return PendingReason(reason, message, tuple((pod.key, message) for pod in pods), key)
