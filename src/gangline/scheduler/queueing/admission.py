"""Admission: gangs that cannot be tried, because of their queue, a quota, or missing pods.

A controller that waits for the phase Inqueue creates pods only then. So a gang that states its
``minResources`` is judged by them. Without them it is admitted, and its pods are judged by the
cycle.

A resource quota may count some pods only (its scopes). Missing pods are assumed to equal the
existing members; a gang without members is described by its group. The API server charges pods to a
quota when they are created, so existing pods are within it. A gang of which the quota admits only a
part stays pending with that part, and its reason names the quota. Controllers that create pods
after admission then create none of them.
"""

from collections.abc import Collection, Iterable, Set
from dataclasses import replace

from gangline.api.cluster.workload import GROUP as KUBERNETES_GROUP
from gangline.api.figures import plain_number
from gangline.api.resource_list import CPU, MEMORY
from gangline.api.volcano.scheduling import DEFAULT_QUEUE, ROOT_QUEUE
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.queueing import messages
from gangline.scheduler.queueing.queue_tree import QueueTree, ancestors
from gangline.scheduler.types import (
    GangId,
    GroupKey,
    PendingReason,
    PodGroupInfo,
    PodInfo,
    QuotaAttributes,
    QuotaInfo,
    Request,
    SubgroupRule,
    all_in_scopes,
    gang_name,
    is_kubernetes_group,
)

_COUNTS = frozenset({"pods", "count/pods"})
_REQUESTS = "requests."


def check_admission(
    state: SchedulerCache,
    group: PodGroupInfo,
    waiting: Iterable[PodInfo] = (),
    inner: Set[str] | None = None,
) -> PendingReason | None:
    """Return the reason why the gang's queue or a quota does not admit it; None: it is admitted.

    Args:
        waiting: its pending pods, for the reason.
        inner: names of the queues that have children, if the caller knows them.
    """
    if inner is None:
        inner = {child.parent for child in state.queues.values()}
    group = in_present_queue(state, group, inner)
    if group.queue not in state.queues:
        message = (
            f"Queue {group.queue!r} does not exist: create it, or name an existing one in the "
            "group's spec.queue."
        )
        return _pending_reason(messages.NO_SUCH_QUEUE, message, waiting, group.key)
    if group.queue in inner or group.queue == ROOT_QUEUE:
        message = (
            f"Queue {group.queue!r} has child queues and takes no jobs itself: name one of them "
            "in the group's spec.queue."
        )
        above = ancestors(state.queues, group.queue)
        if group.queue in above:
            way = " -> ".join((group.queue, *above))
            message = (
                f"Queue {group.queue!r} is below itself ({way}): change the spec.parent of one."
            )
        return _pending_reason(messages.QUEUE_NOT_LEAF, message, waiting, group.key)
    for name in (group.queue, *ancestors(state.queues, group.queue)):
        # Its members are looked at only then: this runs for each pending gang of each cycle.
        if not state.queues[name].open and not _has_started(state, group):
            message = f"Queue {name!r} is closed: open it, or move the job to another queue."
            return _pending_reason(messages.QUEUE_CLOSED, message, waiting, group.key)
    if quotas := state.quotas.get(group.key.partition("/")[0]):
        members = state.members.get(group.key, {}).values()
        asked = missing_pods_request(group, members)
        if figures := exceeded_quota_message(
            quotas.values(), asked, missing_pods_attributes(group, members)
        ):
            message = (
                f"The namespace's quota does not admit the complete gang: {figures}. "
                "It starts when others of the namespace end, or the quota is raised."
            )
            return _pending_reason(messages.QUOTA_EXCEEDED, message, waiting, group.key)
    return None


def is_open_leaf(state: SchedulerCache, name: str, inner: Set[str]) -> bool:
    """Return whether a queue admits every gang: it exists, has no children, and is open as all
    queues above it.
    """
    if name not in state.queues or name in inner or name == ROOT_QUEUE:
        return False
    return all(state.queues[queue].open for queue in (name, *ancestors(state.queues, name)))


def in_present_queue(state: SchedulerCache, group: PodGroupInfo, inner: Set[str]) -> PodGroupInfo:
    """Return the group in the queue that it is scheduled in: its own, but the default queue for a
    gang that runs while its queue is deleted or gets children, so that it may replace its pods.
    """
    name = group.queue
    is_present = name in state.queues and name not in inner and name != ROOT_QUEUE
    if is_present or DEFAULT_QUEUE in inner or not _has_started(state, group):
        return group
    return replace(group, queue=DEFAULT_QUEUE)


def _has_started(state: SchedulerCache, group: PodGroupInfo) -> bool:
    """Return whether a gang has, or had, pods with nodes. A closed queue is for new gangs only:
    those that run may replace their pods, so that it drains.
    """
    key = group.key
    return (
        key in state.former_members
        or key in state.restarting_groups
        or any(pod.node is not None for pod in state.members.get(key, {}).values())
    )


def binding_refused(
    state: SchedulerCache, waiting: Iterable[PodInfo], now: float, group: GroupKey | None = None
) -> PendingReason | None:
    """Return the reason if the binding of one of these pods was refused a short time ago."""
    if not state.refused_bindings:
        return None
    pods = list(waiting)
    for pod in pods:
        refused = state.refused_bindings.get(pod.key)
        if refused is not None and refused.uid == pod.uid and refused.until > now:
            return PendingReason(
                messages.BINDING_REFUSED,
                refused.message,
                tuple((waiting_pod.key, refused.message) for waiting_pod in pods),
                group,
            )
    return None


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
    return over_queue_limit(group, queue.info.name) if queue is not None else None


def missing_pods_request(group: PodGroupInfo, members: Iterable[PodInfo]) -> Request:
    """Return the total request of a gang's missing pods, with their number: those of its minimum,
    and those that join it later.

    It follows from ``minResources`` of the group; else missing pods are assumed to equal an
    existing one.
    """
    existing = _existing(members)
    lacking = group.size - len(existing)
    if lacking <= 0:
        return ()
    size = group.size
    amounts = {name: -(-amount * lacking // size) for name, amount in group.min_resources}
    if not amounts and existing:
        amounts = {name: amount * lacking for name, amount in existing[0].shape.request}
    return tuple(sorted({**amounts, "pods": lacking}.items()))


def missing_pods_attributes(
    group: PodGroupInfo, members: Iterable[PodInfo]
) -> frozenset[QuotaAttributes]:
    """Return the known quota attributes of a gang's missing pods."""
    if existing := _existing(members):
        return frozenset(pod.quota_attributes for pod in existing)
    asks = any(amount for name, amount in group.min_resources if name in (CPU, MEMORY))
    # Without a class the pod may get the default one: unknown.
    return frozenset(
        (QuotaAttributes(None, False if asks else None, group.priority_class or None, None),)
    )


def exceeded_quota_message(
    quotas: Iterable[QuotaInfo], asked: Request, pods: Iterable[QuotaAttributes] = ()
) -> str:
    """Return which quota would be exceeded; empty: none.

    Args:
        pods: known attributes of these pods; empty: they are in every scope.
    """
    requested, kinds = dict(asked), list(pods)
    for quota in sorted(quotas, key=lambda quota: quota.key):
        if not all_in_scopes(quota.scopes, kinds):
            continue
        used = dict(quota.used)
        for name, hard in quota.hard:
            resource = "pods" if name in _COUNTS else name.removeprefix(_REQUESTS)
            amount = requested.get(resource, 0)
            if amount and used.get(name, 0) + amount > hard:
                left = _amount_text(name, max(0, hard - used.get(name, 0)))
                return (
                    f"quota {quota.key!r}{_scope_text(quota)} has {left} left of "
                    f"{_amount_text(name, hard)}, and {_amount_text(name, amount)} more is needed"
                )
    return ""


def _existing(members: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in members if not pod.is_terminating and pod.phase != "Failed"]


def _scope_text(quota: QuotaInfo) -> str:
    return f" (for pods in scope {', '.join(map(str, quota.scopes))})" if quota.scopes else ""


def _amount_text(name: str, amount: int) -> str:
    shown = plain_number(amount / 1000) if name.endswith("cpu") else str(amount)
    return f"{name} {shown}"


def group_not_found(key: GroupKey, pods: Iterable[PodInfo]) -> PendingReason:
    of_kubernetes = f" of {KUBERNETES_GROUP}" if is_kubernetes_group(key) else ""
    message = (
        f"Pod group {gang_name(GangId(key))!r}{of_kubernetes} does not exist: the pods wait until "
        "it is created, since only the group states how many must start together."
    )
    return _pending_reason(messages.NO_SUCH_GROUP, message, pods, key)


def over_queue_limit(group: PodGroupInfo, queue: str) -> PendingReason:
    """The limit of a queue does not allow the pods that are still to be created."""
    message = (
        f"Queue {queue!r} is at its limit: the gang is admitted when jobs of the queue end, or its "
        "limit is raised."
    )
    return _pending_reason(messages.QUEUE_LIMIT, message, (), group.key)


def resource_claims(
    state: SchedulerCache, pods: Collection[PodInfo], key: GroupKey | None = None
) -> PendingReason | None:
    """Return the reason if pods have claims of devices that this scheduler does not support, or
    that do not exist yet.
    """
    devices = state.devices
    if devices.classes and (message := _extended_resource(state, pods)):
        extended = tuple((pod.key, message) for pod in pods)
        return PendingReason(messages.RESOURCE_CLAIMS, message, extended, key)
    users = [pod for pod in pods if pod.device_claims]
    if not users:
        return None
    why = next(filter(None, map(devices.unsupported, users)), "")
    if not why:
        missing = next(filter(None, map(devices.missing, users)), "")
        reasons = tuple((pod.key, missing) for pod in pods)
        return (
            PendingReason(messages.CLAIMS_NOT_CREATED, missing, reasons, key) if missing else None
        )
    message = (
        f"Its claims of devices (spec.resourceClaims) are not supported by this scheduler: {why}. "
        "Change the claim or its device class, or leave the pod to another scheduler "
        "(spec.schedulerName)."
    )
    reasons = tuple((pod.key, message) for pod in pods)
    return PendingReason(messages.RESOURCE_CLAIMS, message, reasons, key)


def _extended_resource(state: SchedulerCache, pods: Iterable[PodInfo]) -> str:
    """Return what to do about a resource that only a device class offers; empty: there is none."""
    nodes = state.nodes
    for shape in {id(pod.shape): pod.shape for pod in pods}.values():
        for resource, _ in shape.request:
            name = state.devices.class_of(resource)
            column = nodes.columns.get(resource) if name else None
            if name and (column is None or not nodes.allocatable[column].any()):
                return (
                    f"It requests {resource}, which device class {name!r} offers as an extended "
                    "resource. This scheduler does not support that: use a ResourceClaim of the "
                    "class, or leave the pod to another scheduler (spec.schedulerName)."
                )
    return ""


def too_few_pods(group: PodGroupInfo, existing: int, pods: Iterable[PodInfo]) -> PendingReason:
    message = (
        f"{existing} of the {group.min_member} pods that must start together exist: "
        f"{group.min_member - existing} still to be created."
    )
    return _pending_reason(messages.NOT_ENOUGH_PODS, message, pods, group.key)


def held_by_gates(
    group: PodGroupInfo, members: Iterable[PodInfo], waiting: Iterable[PodInfo] = ()
) -> PendingReason | None:
    """Return the reason if a gang cannot start because scheduling gates hold some of its pods."""
    lasting = [pod for pod in members if not (pod.phase == "Failed" or pod.is_terminating)]
    gated = sum(pod.is_gated and pod.node is None for pod in lasting)
    if not gated or len(lasting) - gated >= group.min_member:
        return None
    message = (
        f"Scheduling gates hold {gated} of its {len(lasting)} pods, and {group.min_member} must "
        "start together: who has set a gate removes it."
    )
    return _pending_reason(messages.SCHEDULING_GATED, message, waiting, group.key)


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
