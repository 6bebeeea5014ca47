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
from math import ceil, floor
from typing import Any

import msgspec

from gangline.api.core.workloads import (
    DeploymentSpec,
    DeploymentStatus,
    RollingUpdateDeployment,
)
from gangline.api.meta.objects import Condition, Object
from gangline.api.meta.resource import Resource
from gangline.local.controllers.replica_sets.plan import (
    PodTemplate,
    RawReplicaSet,
    controller_reference,
)

HASH_LABEL = "pod-template-hash"
REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
HASH_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
DEFAULT_SURGE = "25%"
PROGRESSING, TIMED_OUT = "Progressing", "ProgressDeadlineExceeded"


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

    scale: Mapping[str, int] = field(default_factory=dict)
    """New sizes by ReplicaSet name."""

    delete: tuple[str, ...] = ()
    """ReplicaSets of revisions beyond the history limit."""

    revision: str = ""
    """The current revision, for the deployment's annotation."""

    revisions: Mapping[str, str] = field(default_factory=dict)
    """New revision numbers by ReplicaSet name, after a roll-back to an older template."""

    status: DeploymentStatus = field(default_factory=DeploymentStatus)


def plan_deployment(
    deployment: RawDeployment, owned: Sequence[RawReplicaSet], now: datetime
) -> DeploymentPlan:
    if deployment.metadata.deletion_timestamp is not None:
        return DeploymentPlan(status=deployment.status)
    current = next((one for one in owned if _same_template(deployment, one)), None)
    old = [one for one in owned if one is not current]
    last = max((_revision(one) for one in old), default=0)
    status = _status(deployment, current, owned, now)
    if current is None:
        if deployment.spec.paused:
            return DeploymentPlan(status=status, scale=_scale_paused(deployment, owned))
        first = _first_size(deployment, old)
        return DeploymentPlan(
            create=build_replica_set(deployment, first, revision=last + 1),
            revision=str(last + 1),
            scale=_step(deployment, None, old) if _recreates(deployment) else {},
            status=status,
        )
    revision = max(_revision(current), last + 1 if last >= _revision(current) else 0, 1)
    scale = _scale_paused(deployment, owned) if deployment.spec.paused else {}
    return DeploymentPlan(
        scale=scale or ({} if deployment.spec.paused else _step(deployment, current, old)),
        delete=_expired_replica_sets(deployment, old),
        revision=str(revision),
        revisions={} if revision == _revision(current) else {current.metadata.name: str(revision)},
        status=status,
    )


def template_hash(template: PodTemplate) -> str:
    """Return ten letters that identify a pod template by content; there are no vowels."""
    digest = hashlib.sha1(
        json.dumps(template, sort_keys=True).encode(), usedforsecurity=False
    ).digest()
    return "".join(HASH_ALPHABET[byte % len(HASH_ALPHABET)] for byte in digest[:10])


def build_replica_set(deployment: RawDeployment, replicas: int, revision: int) -> dict[str, Any]:
    """Return the manifest of the ReplicaSet for the Deployment's present template."""
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
            "annotations": {REVISION_ANNOTATION: str(revision)},
            "ownerReferences": [controller_reference("apps/v1", "Deployment", deployment)],
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


def _revision(one: RawReplicaSet) -> int:
    text = one.metadata.annotations.get(REVISION_ANNOTATION, "")
    return int(text) if text.isdigit() else 0


def _recreates(deployment: RawDeployment) -> bool:
    return deployment.spec.strategy.type == "Recreate"


def availability_bounds(deployment: RawDeployment) -> tuple[int, int]:
    """Return the minimum of available pods and the maximum of all pods during a rolling update."""
    desired = deployment.desired_replicas
    rolling = deployment.spec.strategy.rolling_update or RollingUpdateDeployment()
    surge, missing = (
        DEFAULT_SURGE if share is None else share
        for share in (rolling.max_surge, rolling.max_unavailable)
    )
    extra, fewer = _share(surge, desired, up=True), _share(missing, desired, up=False)
    if extra == 0 and fewer == 0:
        fewer = 1  # If both round to zero, no step would be possible.
    return max(0, desired - fewer), desired + extra


def _share(value: int | str, total: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    part = float(value.rstrip("%")) * total / 100
    return ceil(part) if up else floor(part)


def _first_size(deployment: RawDeployment, old: Sequence[RawReplicaSet]) -> int:
    total = sum(one.desired_replicas for one in old)
    if _recreates(deployment):
        emptied = total == 0 and not any(o.status.replicas for o in old)
        return deployment.desired_replicas if emptied else 0
    return min(deployment.desired_replicas, max(0, availability_bounds(deployment)[1] - total))


def _step(
    deployment: RawDeployment, current: RawReplicaSet | None, old: Sequence[RawReplicaSet]
) -> dict[str, int]:
    if _recreates(deployment):
        sizes = {one.metadata.name: 0 for one in old if one.desired_replicas}
        emptied = not any(one.status.replicas for one in old)
        if (
            current is not None
            and not sizes
            and emptied
            and current.desired_replicas != deployment.desired_replicas
        ):
            sizes[current.metadata.name] = deployment.desired_replicas
        return sizes
    return _roll(deployment, current, old) if current is not None else {}


def _roll(
    deployment: RawDeployment, current: RawReplicaSet, old: Sequence[RawReplicaSet]
) -> dict[str, int]:
    fewest, most = availability_bounds(deployment)
    total = current.desired_replicas + sum(one.desired_replicas for one in old)
    if current.desired_replicas > deployment.desired_replicas:
        return {current.metadata.name: deployment.desired_replicas}
    if current.desired_replicas < deployment.desired_replicas and total < most:
        growth = min(deployment.desired_replicas - current.desired_replicas, most - total)
        return {current.metadata.name: current.desired_replicas + growth}
    sizes: dict[str, int] = {}
    not_yet = max(0, current.desired_replicas - current.status.available_replicas)
    removable = total - fewest - not_yet
    # Unavailable pods are removed first: that costs no availability.
    for one in sorted(old, key=_revision):
        broken = max(0, one.desired_replicas - one.status.available_replicas)
        removed = min(broken, max(0, removable))
        if removed:
            sizes[one.metadata.name] = one.desired_replicas - removed
            removable -= removed
    available = current.status.available_replicas + sum(o.status.available_replicas for o in old)
    spare = available - fewest
    for one in sorted(old, key=_revision):
        size = sizes.get(one.metadata.name, one.desired_replicas)
        removed = min(size, max(0, min(spare, removable)))
        if removed:
            sizes[one.metadata.name] = size - removed
            spare, removable = spare - removed, removable - removed
    return sizes


def _scale_paused(deployment: RawDeployment, owned: Sequence[RawReplicaSet]) -> dict[str, int]:
    """Sizes for a paused Deployment: its newest ReplicaSet follows ``replicas``, the template
    stays.
    """
    newest = max(owned, key=_revision, default=None)
    if newest is None:
        return {}
    others = sum(one.desired_replicas for one in owned if one is not newest)
    size = max(0, deployment.desired_replicas - others)
    return {newest.metadata.name: size} if size != newest.desired_replicas else {}


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
    now: datetime,
) -> DeploymentStatus:
    replicas = sum(one.status.replicas for one in owned)
    available = sum(one.status.available_replicas for one in owned)
    updated = current.status.replicas if current else 0
    status = DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=replicas,
        updated_replicas=updated,
        ready_replicas=sum(one.status.ready_replicas for one in owned),
        available_replicas=available,
        unavailable_replicas=max(0, sum(one.desired_replicas for one in owned) - available),
        collision_count=deployment.status.collision_count,
    )
    done = current is not None and updated == replicas == available == deployment.desired_replicas
    enough = available >= availability_bounds(deployment)[0]
    conditions = [
        _condition(
            deployment,
            "Available",
            enough,
            "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            f"Deployment {'has' if enough else 'does not have'} minimum availability.",
            now,
        ),
        _progress(deployment, current, status, done, now),
    ]
    return msgspec.structs.replace(status, conditions=conditions)


def _progress(
    deployment: RawDeployment,
    current: RawReplicaSet | None,
    status: DeploymentStatus,
    done: bool,
    now: datetime,
) -> Condition:
    """Return whether the Deployment progresses: false after ``progressDeadlineSeconds`` in which
    no pod was added, became ready or available, or left an old ReplicaSet.
    """
    former = next((c for c in deployment.status.conditions if c.type == PROGRESSING), None)
    if done:
        message = "All pods have the current template."
        return _condition(deployment, PROGRESSING, True, "NewReplicaSetAvailable", message, now)
    seen, message = deployment.status, "Pods are being replaced."
    moved = (
        former is None
        or former.reason == "NewReplicaSetAvailable"
        or seen.observed_generation != status.observed_generation
        or status.updated_replicas > seen.updated_replicas
        or status.ready_replicas > seen.ready_replicas
        or status.available_replicas > seen.available_replicas
        or status.replicas - status.updated_replicas < seen.replicas - seen.updated_replicas
    )
    condition = _condition(deployment, PROGRESSING, True, "ReplicaSetUpdated", message, now)
    if former is None or moved:
        return msgspec.structs.replace(condition, last_update_time=now)
    deadline = _progress_deadline(deployment, former)
    if former.status == "False" or deadline is None or deadline > now:
        return former
    name = current.metadata.name if current is not None else deployment.metadata.name
    message = f'ReplicaSet "{name}" has timed out progressing.'
    return _condition(deployment, PROGRESSING, False, TIMED_OUT, message, now)


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
    if progress is None or progress.reason != "ReplicaSetUpdated":
        return None
    return _progress_deadline(deployment, progress)


def _condition(
    deployment: RawDeployment, kind: str, true: bool, reason: str, message: str, now: datetime
) -> Condition:
    status = "True" if true else "False"
    old = next((c for c in deployment.status.conditions if c.type == kind), None)
    if old is not None and (old.status, old.reason) == (status, reason):
        return old
    kept = old.last_transition_time if old is not None and old.status == status else now
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=kept,
        last_update_time=now,
    )
