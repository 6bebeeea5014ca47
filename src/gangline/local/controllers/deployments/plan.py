"""Deployments: which ReplicaSet is current, what size each should have, and the status.

Invariant of a rolling update: at every moment at least ``replicas - maxUnavailable`` pods are
available, and at most ``replicas + maxSurge`` exist. ``Recreate`` scales the old ReplicaSets to
zero before it scales up the new one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import floor
from typing import Any

import msgspec

from gangline.api.core.workloads import DeploymentSpec, DeploymentStatus, RollingUpdateDeployment
from gangline.api.meta.objects import Condition, Object
from gangline.api.meta.resource import Resource
from gangline.local.controllers.replica_sets.plan import (
    PodTemplate,
    RawReplicaSet,
    controller_reference,
    share_of,
)

HASH_LABEL = "pod-template-hash"
REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
DESIRED_ANNOTATION = "deployment.kubernetes.io/desired-replicas"
MAX_ANNOTATION = "deployment.kubernetes.io/max-replicas"
OWN_ANNOTATIONS = {
    REVISION_ANNOTATION,
    DESIRED_ANNOTATION,
    MAX_ANNOTATION,
    "deployment.kubernetes.io/revision-history",
    "kubectl.kubernetes.io/last-applied-configuration",
}
HASH_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
DEFAULT_SURGE = "25%"
PROGRESSING = "Progressing"
COMPLETE, TIMED_OUT = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"
PAUSED = "DeploymentPaused"


class RawDeploymentSpec(DeploymentSpec):
    """The spec of a Deployment with its template unparsed."""

    template: PodTemplate = msgspec.field(default_factory=dict)  # type: ignore[assignment]


class RawDeployment(Object):
    spec: RawDeploymentSpec = RawDeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def desired_replicas(self) -> int:
        return 1 if self.spec.replicas is None else self.spec.replicas


RAW_DEPLOYMENTS: Resource[RawDeployment] = Resource(
    RawDeployment, "apps", "v1", "deployments", "Deployment"
)


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    create: dict[str, Any] | None = None
    """The manifest of a new ReplicaSet."""

    patches: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Merge patches by ReplicaSet name: sizes, and annotations with revision and recorded sizes."""

    delete: tuple[str, ...] = ()
    """ReplicaSets of revisions beyond the history limit."""

    revision: str = ""
    """The current revision, for the deployment's annotation."""

    status: DeploymentStatus = field(default_factory=DeploymentStatus)


def plan_deployment(
    deployment: RawDeployment, owned: Sequence[RawReplicaSet], now: datetime
) -> DeploymentPlan:
    if deployment.metadata.deletion_timestamp is not None:
        return DeploymentPlan(status=deployment.status)
    owned = sorted(owned, key=_age)
    current = next((one for one in owned if _same_template(deployment, one)), None)
    old = [one for one in owned if one is not current]
    last = max((_revision(one) for one in old), default=0)
    if deployment.spec.paused or _is_scaled(deployment, owned):
        sizes = _scale(deployment, current, old)
        create = None
    else:
        sizes = _roll_out(deployment, current, old)
        create = _missing_set(deployment, current, old, last + 1)
    revision = str(last + 1) if create is not None else ""
    if current is not None:
        revision = str(max(_revision(current), last + 1 if last >= _revision(current) else 0, 1))
    patches = {
        one.metadata.name: _changes(
            deployment, one, sizes.get(one.metadata.name), revision if one is current else ""
        )
        for one in owned
    }
    return DeploymentPlan(
        create=create,
        patches={name: patch for name, patch in patches.items() if patch},
        delete=_expired_replica_sets(deployment, old) if current is not None else (),
        revision=revision,
        status=_status(deployment, current, owned, create, now),
    )


def _changes(
    deployment: RawDeployment, one: RawReplicaSet, size: int | None, revision: str
) -> dict[str, Any]:
    """The patch of a set. ``size`` None keeps its size; only the current one has a ``revision``."""
    annotations: dict[str, str] = {}
    spec: dict[str, int] = {}
    if size is not None:
        annotations, spec = _recorded_size(deployment), {"replicas": size}
    if revision:
        annotations |= {**_inherited(deployment), REVISION_ANNOTATION: revision}
        spec["minReadySeconds"] = deployment.spec.min_ready_seconds
    present = {"replicas": one.desired_replicas, "minReadySeconds": one.spec.min_ready_seconds}
    annotations = dict(annotations.items() - one.metadata.annotations.items())
    spec = dict(spec.items() - present.items())
    metadata = {"metadata": {"annotations": annotations}} if annotations else {}
    return {**metadata, **({"spec": spec} if spec else {})}


def template_hash(template: PodTemplate) -> str:
    """Return ten letters that identify a pod template by content; there are no vowels."""
    digest = hashlib.sha1(
        json.dumps(template, sort_keys=True).encode(), usedforsecurity=False
    ).digest()
    return "".join(HASH_ALPHABET[byte % len(HASH_ALPHABET)] for byte in digest[:10])


def build_replica_set(deployment: RawDeployment, replicas: int, revision: int) -> dict[str, Any]:
    mark = template_hash(deployment.spec.template)
    template = msgspec.to_builtins(deployment.spec.template)
    metadata = dict(template.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), HASH_LABEL: mark}
    selector = msgspec.to_builtins(deployment.spec.selector)
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH_LABEL: mark}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{deployment.metadata.name}-{mark}",
            "namespace": deployment.metadata.namespace,
            "labels": labels,
            "annotations": {
                **_inherited(deployment),
                **_recorded_size(deployment),
                REVISION_ANNOTATION: str(revision),
            },
            "ownerReferences": [controller_reference(RAW_DEPLOYMENTS, deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": selector,
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }


def _same_template(deployment: RawDeployment, one: RawReplicaSet) -> bool:
    template = dict(one.spec.template)
    metadata = dict(template.get("metadata") or {})
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != HASH_LABEL}
    return _comparable_template(template, labels) == _comparable_template(
        deployment.spec.template, (deployment.spec.template.get("metadata") or {}).get("labels")
    )


def _comparable_template(template: PodTemplate, labels: Mapping[str, str] | None) -> dict[str, Any]:
    """The template without fields that clients add and drop freely: empty fields, a null creation
    time.
    """
    metadata = dict(template.get("metadata") or {})
    metadata.pop("creationTimestamp", None)
    metadata["labels"] = dict(labels or {})
    return {"metadata": metadata, "spec": template.get("spec") or {}}


def _age(one: RawReplicaSet) -> tuple[float, int, str]:
    created = one.metadata.creation_timestamp
    return created.timestamp() if created else 0.0, _revision(one), one.metadata.name


def _revision(one: RawReplicaSet) -> int:
    return _recorded(one, REVISION_ANNOTATION, 0)


def _recreates(deployment: RawDeployment) -> bool:
    return deployment.spec.strategy.type == "Recreate"


def availability_bounds(deployment: RawDeployment) -> tuple[int, int]:
    """Return the minimum of available pods and the maximum of all pods during a roll-out."""
    desired = deployment.desired_replicas
    if _recreates(deployment):
        return desired, desired
    rolling = deployment.spec.strategy.rolling_update or RollingUpdateDeployment()
    surge, missing = (
        DEFAULT_SURGE if share is None else share
        for share in (rolling.max_surge, rolling.max_unavailable)
    )
    extra, fewer = share_of(surge, desired, up=True), share_of(missing, desired, up=False)
    if extra == 0 and fewer == 0:
        fewer = 1  # If both round to zero, no step would be possible.
    return max(0, desired - fewer), desired + extra


def _missing_set(
    deployment: RawDeployment,
    current: RawReplicaSet | None,
    old: Sequence[RawReplicaSet],
    revision: int,
) -> dict[str, Any] | None:
    """The ReplicaSet to create; with ``Recreate`` only after the last pod of the old ones."""
    if current is not None or (_recreates(deployment) and not _is_empty(old)):
        return None
    total = sum(one.desired_replicas for one in old)
    most = availability_bounds(deployment)[1]
    size = max(0, min(deployment.desired_replicas, most - total))
    return build_replica_set(deployment, size, revision)


def _is_empty(sets: Sequence[RawReplicaSet]) -> bool:
    return not any(
        one.desired_replicas or one.status.replicas or one.status.terminating_replicas
        for one in sets
    )


def _is_scaled(deployment: RawDeployment, owned: Sequence[RawReplicaSet]) -> bool:
    """True if ``replicas`` differs from what the sizes of the ReplicaSets were made for."""
    recorded = {
        one.metadata.annotations.get(DESIRED_ANNOTATION) for one in owned if one.desired_replicas
    }
    return not recorded <= {None, str(deployment.desired_replicas)}


def _scale(
    deployment: RawDeployment, current: RawReplicaSet | None, old: Sequence[RawReplicaSet]
) -> dict[str, int]:
    """Sizes by ReplicaSet name for other ``replicas``; the proportion of new and old pods stays.

    So a change of the size neither speeds up a roll-out nor takes pods from what works.
    """
    desired = deployment.desired_replicas
    owned = [*old, *([current] if current is not None else [])]
    active = [one for one in owned if one.desired_replicas]
    if len(active) <= 1:
        single = active or ([current] if current is not None else sorted(owned, key=_age)[-1:])
        return {one.metadata.name: desired for one in single}
    if current is not None and desired == current.desired_replicas == min(
        _recorded(current, DESIRED_ANNOTATION, -1), current.status.available_replicas
    ):
        return {one.metadata.name: 0 for one in active if one is not current}
    if _recreates(deployment):
        return {one.metadata.name: one.desired_replicas for one in active}
    most = availability_bounds(deployment)[1] if desired else 0
    missing = most - sum(one.desired_replicas for one in active)
    # The largest comes first and takes the rest; of equal ones the newest grow, the oldest shrink.
    active.sort(key=_age, reverse=missing > 0)
    active.sort(key=lambda one: one.desired_replicas, reverse=True)
    sizes, added = {}, 0
    for one in active:
        size = one.desired_replicas
        before = _recorded(one, MAX_ANNOTATION, deployment.status.replicas) or size
        # Kubernetes rounds half away from zero.
        share = floor(size * availability_bounds(deployment)[1] / before + 0.5) if desired else 0
        left = missing - added
        change = min(share - size, left) if missing > 0 else max(share - size, left)
        sizes[one.metadata.name] = size + (change if left and missing else 0)
        added += sizes[one.metadata.name] - size
    first = active[0].metadata.name
    sizes[first] = max(0, sizes[first] + missing - added)
    return sizes


def _recorded(one: RawReplicaSet, annotation: str, default: int) -> int:
    text = one.metadata.annotations.get(annotation, "")
    return int(text) if text.isdecimal() else default


def _recorded_size(deployment: RawDeployment) -> dict[str, str]:
    """The annotations of a ReplicaSet with which later ``replicas`` are compared."""
    most = availability_bounds(deployment)[1]
    return {DESIRED_ANNOTATION: str(deployment.desired_replicas), MAX_ANNOTATION: str(most)}


def _inherited(deployment: RawDeployment) -> dict[str, str]:
    """The annotations of the Deployment that its ReplicaSets have too, such as the change cause."""
    annotations = deployment.metadata.annotations.items()
    return {key: value for key, value in annotations if key not in OWN_ANNOTATIONS}


def _roll_out(
    deployment: RawDeployment, current: RawReplicaSet | None, old: Sequence[RawReplicaSet]
) -> dict[str, int]:
    """The sizes to change in this step of a roll-out, by ReplicaSet name."""
    desired = deployment.desired_replicas
    if _recreates(deployment):
        sizes = {one.metadata.name: 0 for one in old if one.desired_replicas}
        if current is not None and _is_empty(old) and current.desired_replicas != desired:
            sizes[current.metadata.name] = desired
        return sizes
    if current is None:
        return {}
    fewest, most = availability_bounds(deployment)
    total = current.desired_replicas + sum(one.desired_replicas for one in old)
    if current.desired_replicas > desired:
        return {current.metadata.name: desired}
    if current.desired_replicas < desired and total < most:
        growth = min(desired - current.desired_replicas, most - total)
        return {current.metadata.name: current.desired_replicas + growth}
    not_yet = max(0, current.desired_replicas - current.status.available_replicas)
    removable = max(0, total - fewest - not_yet)
    before = {one.metadata.name: one.desired_replicas for one in old if one.desired_replicas}
    sizes = dict(before)
    # Unavailable pods are removed first: that costs no availability.
    available = current.status.available_replicas + sum(o.status.available_replicas for o in old)
    broken = {
        o.metadata.name: max(0, o.desired_replicas - o.status.available_replicas) for o in old
    }
    for limits, spare in ((broken, removable), (before, available - fewest)):
        left = min(spare, removable)
        for name in sizes:
            removed = max(0, min(sizes[name], limits[name], left))
            sizes[name] -= removed
            left, removable = left - removed, removable - removed
    return {name: size for name, size in sizes.items() if size != before[name]}


def _expired_replica_sets(
    deployment: RawDeployment, old: Sequence[RawReplicaSet]
) -> tuple[str, ...]:
    limit = deployment.spec.revision_history_limit
    keep = 10 if limit is None else limit
    empty = sorted(
        (o for o in old if not o.desired_replicas and not o.status.replicas), key=_revision
    )
    return tuple(one.metadata.name for one in empty[: max(0, len(empty) - keep)])


def _status(
    deployment: RawDeployment,
    current: RawReplicaSet | None,
    owned: Sequence[RawReplicaSet],
    create: dict[str, Any] | None,
    now: datetime,
) -> DeploymentStatus:
    replicas = sum(one.status.replicas for one in owned)
    available = sum(one.status.available_replicas for one in owned)
    status = DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=replicas,
        updated_replicas=current.status.replicas if current else 0,
        ready_replicas=sum(one.status.ready_replicas for one in owned),
        available_replicas=available,
        unavailable_replicas=max(0, sum(one.desired_replicas for one in owned) - available),
        terminating_replicas=sum(one.status.terminating_replicas or 0 for one in owned),
        collision_count=deployment.status.collision_count,
    )
    enough = available >= availability_bounds(deployment)[0]
    availability = _condition(
        deployment,
        "Available",
        "True" if enough else "False",
        f"MinimumReplicas{'Available' if enough else 'Unavailable'}",
        f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        now,
    )
    sets = [*([current] if current else []), *owned]
    failures = [c for one in sets for c in one.status.conditions if c.type == "ReplicaFailure"]
    progress = _progress(deployment, current, create, status, now)
    return msgspec.structs.replace(status, conditions=[availability, progress, *failures[:1]])


def _progress(
    deployment: RawDeployment,
    current: RawReplicaSet | None,
    create: dict[str, Any] | None,
    status: DeploymentStatus,
    now: datetime,
) -> Condition:
    """Return whether the Deployment progresses: false after ``progressDeadlineSeconds`` in which
    no pod was added, became ready or available, or left an old ReplicaSet.
    """
    former = next((c for c in deployment.status.conditions if c.type == PROGRESSING), None)

    def progress(status: str, reason: str, message: str) -> Condition:
        return _condition(deployment, PROGRESSING, status, reason, message, now)

    if create is not None:
        message = f'Created new replica set "{create["metadata"]["name"]}"'
        return progress("True", "NewReplicaSetCreated", message)
    if former is not None and deployment.spec.paused:
        timed_out = former.reason == TIMED_OUT
        return former if timed_out else progress("Unknown", PAUSED, "Deployment is paused")
    if former is not None and former.reason == PAUSED:
        return progress("Unknown", "DeploymentResumed", "Deployment is resumed")
    name = f'ReplicaSet "{current.metadata.name}"' if current is not None else "Deployment"
    if status.updated_replicas == status.replicas:
        if status.replicas == status.available_replicas == deployment.desired_replicas:
            return progress("True", COMPLETE, f"{name} has successfully progressed.")
        if former is not None and former.reason == COMPLETE:
            return former  # Pods that are lost later are no roll-out.
    seen = deployment.status
    moved = (
        former is None
        or former.reason == COMPLETE
        or seen.observed_generation != status.observed_generation
        or status.updated_replicas > seen.updated_replicas
        or status.ready_replicas > seen.ready_replicas
        or status.available_replicas > seen.available_replicas
        or status.replicas - status.updated_replicas < seen.replicas - seen.updated_replicas
    )
    if former is None or moved:
        condition = progress("True", "ReplicaSetUpdated", f"{name} is progressing.")
        return msgspec.structs.replace(condition, last_update_time=now)
    deadline = _progress_deadline(deployment, former)
    if former.status == "False" or deadline is None or deadline > now:
        return former
    return progress("False", TIMED_OUT, f"{name} has timed out progressing.")


def _progress_deadline(deployment: RawDeployment, progress: Condition) -> datetime | None:
    seconds, since = deployment.spec.progress_deadline_seconds, progress.last_update_time
    if seconds is None or since is None or deployment.spec.paused:
        return None
    return since + timedelta(seconds=seconds)


def progress_check_time(deployment: RawDeployment, status: DeploymentStatus) -> datetime | None:
    """Return when a Deployment will have timed out, given the status to write; None: it will not,
    or has.
    """
    progress = next((c for c in status.conditions if c.type == PROGRESSING), None)
    if progress is None or progress.status == "False" or progress.reason == COMPLETE:
        return None
    return _progress_deadline(deployment, progress)


def _condition(
    deployment: RawDeployment, kind: str, status: str, reason: str, message: str, now: datetime
) -> Condition:
    old = next((c for c in deployment.status.conditions if c.type == kind), None)
    if old is not None and (old.status, old.reason) == (status, reason):
        return old
    since = old.last_transition_time if old is not None and old.status == status else now
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since,
        last_update_time=now,
    )
