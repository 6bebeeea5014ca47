"""ReplicaSets: how many pods to create, and which ones to delete.

``pods`` are those that the ReplicaSet controls; pods that ended or are being deleted do not count.
The cheapest pods are deleted first: without a node, not running, not ready, then the youngest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gangline.api.meta import LabelSelector, Object, Wire
from gangline.api.pod import Pod
from gangline.api.resource import Resource
from gangline.api.workloads import ReplicaSetStatus
from gangline.local.controllers.endpoints import ENDED, is_ready

BURST = 100
"""The maximum number of creations or deletions in one pass, so that a mistyped size does not fill
the
store; kube-controller-manager has a similar limit.
"""
Template = dict[str, Any]
"""A pod template as the user wrote it, without defaults."""


class SetSpec(Wire):
    """The spec of a ReplicaSet with its template unparsed."""

    replicas: int | None = None
    min_ready_seconds: int = 0
    selector: LabelSelector = LabelSelector()
    template: Template = msgspec.field(default_factory=dict)


class Set(Object):
    """A ReplicaSet as the controllers read it."""

    spec: SetSpec = SetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def wanted(self) -> int:
        return 1 if self.spec.replicas is None else self.spec.replicas


SETS: Resource[Set] = Resource(Set, "apps", "v1", "replicasets", "ReplicaSet")


@dataclass(frozen=True, slots=True)
class Plan:
    """Pods to create and delete, and the status to write."""

    create: int = 0
    delete: tuple[Pod, ...] = ()
    status: ReplicaSetStatus = field(default_factory=ReplicaSetStatus)
    look_again: datetime | None = None
    """The time at which the next ready pod becomes available; None if no pod is about to."""


def plan(wanted: Set, pods: Sequence[Pod], now: datetime) -> Plan:
    """Compare a ReplicaSet with its pods."""
    active = [pod for pod in pods if counts(pod)]
    missing = wanted.wanted - len(active)
    if wanted.metadata.deletion_timestamp is not None:
        missing = 0
    surplus = sorted(active, key=_worth)[: min(max(0, -missing), BURST)]
    return Plan(
        create=min(max(0, missing), BURST),
        delete=tuple(surplus),
        status=_status(wanted, active, now),
        look_again=_next_available(wanted, active, now),
    )


def counts(pod: Pod) -> bool:
    """True if a ReplicaSet counts the pod: it has neither ended nor is being deleted."""
    return pod.status.phase not in ENDED and pod.metadata.deletion_timestamp is None


def available_at(pod: Pod, min_ready_seconds: int) -> datetime | None:
    """The time at which a ready pod counts as available; None if it is not ready."""
    for condition in pod.status.conditions:
        if condition.type == "Ready" and condition.status == "True":
            since = condition.last_transition_time or datetime.fromtimestamp(0, UTC)
            return since + timedelta(seconds=min_ready_seconds)
    return None


def pod_body(owner: Set) -> dict[str, Any]:
    """Return the manifest of a pod of the ReplicaSet."""
    metadata: dict[str, Any] = dict(owner.spec.template.get("metadata") or {})
    kept = {
        key: metadata[key] for key in ("labels", "annotations", "finalizers") if key in metadata
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept
        | {
            "generateName": f"{owner.metadata.name}-",
            "namespace": owner.metadata.namespace,
            "ownerReferences": [controller_reference("apps/v1", SETS.kind, owner)],
        },
        "spec": owner.spec.template.get("spec") or {},
    }


def controller_reference(api_version: str, kind: str, owner: Object) -> dict[str, Any]:
    """Return an owner reference that makes ``owner`` the controller of an object."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _status(desired: Set, active: Sequence[Pod], now: datetime) -> ReplicaSetStatus:
    seconds = desired.spec.min_ready_seconds
    times = [available_at(pod, seconds) for pod in active]
    labels = (desired.spec.template.get("metadata") or {}).get("labels") or {}
    return ReplicaSetStatus(
        replicas=len(active),
        fully_labeled_replicas=sum(labels.items() <= pod.metadata.labels.items() for pod in active),
        ready_replicas=sum(is_ready(pod) for pod in active),
        available_replicas=sum(time is not None and time <= now for time in times),
        observed_generation=desired.metadata.generation,
        conditions=desired.status.conditions,
    )


def _next_available(desired: Set, active: Sequence[Pod], now: datetime) -> datetime | None:
    times = (available_at(pod, desired.spec.min_ready_seconds) for pod in active)
    return min((time for time in times if time is not None and time > now), default=None)


def _worth(pod: Pod) -> tuple[bool, bool, bool, float, str]:
    created = pod.metadata.creation_timestamp
    return (
        bool(pod.spec.node_name),
        pod.status.phase == "Running",
        is_ready(pod),
        -created.timestamp() if created else 0.0,
        pod.metadata.name,
    )
