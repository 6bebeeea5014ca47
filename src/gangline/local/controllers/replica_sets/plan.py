"""ReplicaSets: how many pods to create, and which ones to delete.

``pods`` are those that the ReplicaSet controls; pods that ended or are being deleted do not count.
The cheapest pods are deleted first: without a node, not running, not ready, then the youngest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import ceil, floor
from typing import Any

import msgspec

from gangline.api.core.pod import Pod, is_pod_ready
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.core.workloads import ReplicaSetSpec, ReplicaSetStatus
from gangline.api.meta.objects import Condition, Object, OwnerReference
from gangline.api.meta.resource import Resource

BURST_REPLICAS = 100
"""The maximum number of creations or deletions in one pass, so that a mistyped size does not fill
the store; kube-controller-manager has a similar limit.
"""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
REPLICA_FAILURE = "ReplicaFailure"
PodTemplate = dict[str, Any]
"""A pod template as the user wrote it, without defaults."""


class RawReplicaSetSpec(ReplicaSetSpec):
    """The spec of a ReplicaSet with its template unparsed."""

    template: PodTemplate = msgspec.field(default_factory=dict)  # type: ignore[assignment]


class RawReplicaSet(Object):
    spec: RawReplicaSetSpec = RawReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def desired_replicas(self) -> int:
        return 1 if self.spec.replicas is None else self.spec.replicas


RAW_REPLICA_SETS: Resource[RawReplicaSet] = Resource(
    RawReplicaSet, "apps", "v1", "replicasets", "ReplicaSet"
)


@dataclass(frozen=True, slots=True)
class ReplicaSetPlan:
    create: int = 0
    delete: tuple[Pod, ...] = ()
    status: ReplicaSetStatus = field(default_factory=ReplicaSetStatus)
    requeue_at: datetime | None = None
    """The time at which the next ready pod becomes available; None if no pod is about to."""


def plan_replica_set(
    replica_set: RawReplicaSet, pods: Sequence[Pod], now: datetime, *, leaving: int = 0
) -> ReplicaSetPlan:
    """Return what to do; ``leaving`` counts the pods that are being deleted and have not ended."""
    active = [pod for pod in pods if is_pod_active(pod)]
    missing = replica_set.desired_replicas - len(active)
    if replica_set.metadata.deletion_timestamp is not None:
        missing = 0
    surplus = sorted(active, key=deletion_rank)[: min(max(0, -missing), BURST_REPLICAS)]
    return ReplicaSetPlan(
        create=min(max(0, missing), BURST_REPLICAS),
        delete=tuple(surplus),
        status=_status(replica_set, active, now, leaving),
        requeue_at=_next_available(replica_set, active, now),
    )


def share_of(value: int | str, total: int, *, up: bool) -> int:
    """Return a number of pods that may be given as a percentage."""
    if isinstance(value, int):
        return value
    part = float(value.rstrip("%")) * total / 100
    return ceil(part) if up else floor(part)


def is_pod_active(pod: Pod) -> bool:
    """True if a ReplicaSet counts the pod: it has neither ended nor is being deleted."""
    return pod.status.phase not in TERMINAL_PHASES and pod.metadata.deletion_timestamp is None


def availability_time(pod: Pod, min_ready_seconds: int) -> datetime | None:
    """The time at which a ready pod counts as available; None if it is not ready."""
    for condition in pod.status.conditions:
        if condition.type == "Ready" and condition.status == "True":
            since = condition.last_transition_time or datetime.fromtimestamp(0, UTC)
            return since + timedelta(seconds=min_ready_seconds)
    return None


def build_pod(owner: RawReplicaSet) -> dict[str, Any]:
    metadata: dict[str, Any] = dict(owner.spec.template.get("metadata") or {})
    given = {
        key: metadata[key] for key in ("labels", "annotations", "finalizers") if key in metadata
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": given
        | {
            "generateName": f"{owner.metadata.name}-",
            "namespace": owner.metadata.namespace,
            "ownerReferences": [controller_reference(RAW_REPLICA_SETS, owner)],
        },
        "spec": owner.spec.template.get("spec") or {},
    }


def owner_reference(kind: Resource[Any], owner: Object) -> OwnerReference:
    """Return an owner reference that makes ``owner`` the controller of an object."""
    meta = owner.metadata
    return OwnerReference(kind.api_version, kind.kind, meta.name, meta.uid, True, True)


def controller_reference(kind: Resource[Any], owner: Object) -> dict[str, Any]:
    return msgspec.to_builtins(owner_reference(kind, owner))  # type: ignore[no-any-return]


def with_failure(
    status: ReplicaSetStatus, error: Exception | None, now: datetime
) -> ReplicaSetStatus:
    """Return the status with the condition that pods could not be created, or without it."""
    others = [c for c in status.conditions if c.type != REPLICA_FAILURE]
    if error is not None:
        failed = [c for c in status.conditions if c.type == REPLICA_FAILURE]
        others += failed or [
            Condition(
                type=REPLICA_FAILURE,
                status="True",
                reason="FailedCreate",
                message=str(error),
                last_transition_time=now,
            )
        ]
    return msgspec.structs.replace(status, conditions=others)


def _status(
    desired: RawReplicaSet, active: Sequence[Pod], now: datetime, leaving: int
) -> ReplicaSetStatus:
    seconds = desired.spec.min_ready_seconds
    times = [availability_time(pod, seconds) for pod in active]
    labels = (desired.spec.template.get("metadata") or {}).get("labels") or {}
    return ReplicaSetStatus(
        replicas=len(active),
        fully_labeled_replicas=sum(labels.items() <= pod.metadata.labels.items() for pod in active),
        ready_replicas=sum(is_pod_ready(pod) for pod in active),
        available_replicas=sum(time is not None and time <= now for time in times),
        terminating_replicas=leaving,
        observed_generation=desired.metadata.generation,
        conditions=desired.status.conditions,
    )


def _next_available(
    desired: RawReplicaSet, active: Sequence[Pod], now: datetime
) -> datetime | None:
    times = (availability_time(pod, desired.spec.min_ready_seconds) for pod in active)
    return min((time for time in times if time is not None and time > now), default=None)


def deletion_rank(pod: Pod) -> tuple[bool, bool, bool, int, float, str]:
    """The first are deleted: without a node, not running, not ready, the cheapest, the youngest."""
    created = pod.metadata.creation_timestamp
    cost = pod.metadata.annotations.get(DELETION_COST, "")
    return (
        bool(pod.spec.node_name),
        pod.status.phase == "Running",
        is_pod_ready(pod),
        int(cost) if cost.removeprefix("-").isdecimal() else 0,
        -created.timestamp() if created else 0.0,
        pod.metadata.name,
    )
