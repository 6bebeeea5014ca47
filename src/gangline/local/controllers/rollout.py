"""Deployments: which ReplicaSet is current, what size each should have, and the status.

Invariant of a rolling update: at every moment at least ``replicas - maxUnavailable`` pods are
available, and at most ``replicas + maxSurge`` exist. ``Recreate`` scales the old ReplicaSets to
zero
before it scales up the new one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil, floor
from typing import Any

import msgspec

from gangline.api.meta import Condition, LabelSelector, Object, Wire
from gangline.api.resource import Resource
from gangline.api.workloads import DeploymentStatus, DeploymentStrategy
from gangline.local.controllers.replicas import Set, Template, controller_reference

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HASH_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
DEFAULT_SHARE = "25%"


class DeploymentSpec(Wire):
    """The spec of a Deployment with its template unparsed."""

    replicas: int | None = None
    selector: LabelSelector = LabelSelector()
    template: Template = msgspec.field(default_factory=dict)
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class Deployment(Object):
    """A Deployment as its controller reads it."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def wanted(self) -> int:
        return 1 if self.spec.replicas is None else self.spec.replicas


DEPLOYMENTS: Resource[Deployment] = Resource(Deployment, "apps", "v1", "deployments", "Deployment")


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step of a Deployment."""

    create: dict[str, Any] | None = None
    """The manifest of a new ReplicaSet."""

    scale: Mapping[str, int] = field(default_factory=dict)
    """New sizes by ReplicaSet name."""

    delete: tuple[str, ...] = ()
    """ReplicaSets of revisions beyond the history limit."""

    revision: str = ""
    """The current revision, for the deployment's annotation."""

    mark: Mapping[str, str] = field(default_factory=dict)
    """New revision numbers by ReplicaSet name, after a roll-back to an older template."""

    status: DeploymentStatus = field(default_factory=DeploymentStatus)


def plan(deployment: Deployment, owned: Sequence[Set], now: datetime) -> Plan:
    """Compare a Deployment with the ReplicaSets that it controls."""
    if deployment.metadata.deletion_timestamp is not None:
        return Plan(status=deployment.status)
    current = next((one for one in owned if _same_template(deployment, one)), None)
    old = [one for one in owned if one is not current]
    last = max((_revision(one) for one in old), default=0)
    status = _status(deployment, current, owned, now)
    if current is None:
        if deployment.spec.paused:
            return Plan(status=status, scale=_scaled_paused(deployment, owned))
        first = _first_size(deployment, old)
        return Plan(
            create=new_set(deployment, first, revision=last + 1),
            revision=str(last + 1),
            scale=_step(deployment, None, old) if _recreates(deployment) else {},
            status=status,
        )
    revision = max(_revision(current), last + 1 if last >= _revision(current) else 0, 1)
    scale = _scaled_paused(deployment, owned) if deployment.spec.paused else {}
    return Plan(
        scale=scale or ({} if deployment.spec.paused else _step(deployment, current, old)),
        delete=_forgotten(deployment, old),
        revision=str(revision),
        mark={} if revision == _revision(current) else {current.metadata.name: str(revision)},
        status=status,
    )


def template_hash(template: Template) -> str:
    """Return ten letters that identify a pod template by content; there are no vowels."""
    digest = hashlib.sha1(
        json.dumps(template, sort_keys=True).encode(), usedforsecurity=False
    ).digest()
    return "".join(HASH_ALPHABET[byte % len(HASH_ALPHABET)] for byte in digest[:10])


def new_set(deployment: Deployment, replicas: int, revision: int) -> dict[str, Any]:
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
            "annotations": {REVISION: str(revision)},
            "ownerReferences": [controller_reference("apps/v1", "Deployment", deployment)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": selector,
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }


def _same_template(deployment: Deployment, one: Set) -> bool:
    template = dict(one.spec.template)
    metadata = dict(template.get("metadata") or {})
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != HASH_LABEL}
    return _bare(template, labels) == _bare(
        deployment.spec.template, (deployment.spec.template.get("metadata") or {}).get("labels")
    )


def _bare(template: Template, labels: Mapping[str, str] | None) -> dict[str, Any]:
    """The template without fields that clients add and drop freely: empty fields, a null creation
    time.
    """
    metadata = dict(template.get("metadata") or {})
    metadata.pop("creationTimestamp", None)
    metadata["labels"] = dict(labels or {})
    return {"metadata": metadata, "spec": template.get("spec") or {}}


def _revision(one: Set) -> int:
    text = one.metadata.annotations.get(REVISION, "")
    return int(text) if text.isdigit() else 0


def _recreates(deployment: Deployment) -> bool:
    return deployment.spec.strategy.type == "Recreate"


def bounds(deployment: Deployment) -> tuple[int, int]:
    """Return the minimum of available pods and the maximum of all pods during a rolling update."""
    desired, rolling = deployment.wanted, deployment.spec.strategy.rolling_update
    surge = rolling.max_surge if rolling and rolling.max_surge is not None else DEFAULT_SHARE
    missing = (
        rolling.max_unavailable
        if rolling and rolling.max_unavailable is not None
        else DEFAULT_SHARE
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


def _size(one: Set) -> int:
    return one.wanted


def _first_size(deployment: Deployment, old: Sequence[Set]) -> int:
    total = sum(map(_size, old))
    if _recreates(deployment):
        return deployment.wanted if total == 0 and not any(o.status.replicas for o in old) else 0
    return min(deployment.wanted, max(0, bounds(deployment)[1] - total))


def _step(deployment: Deployment, current: Set | None, old: Sequence[Set]) -> dict[str, int]:
    if _recreates(deployment):
        sizes = {one.metadata.name: 0 for one in old if _size(one)}
        emptied = not any(one.status.replicas for one in old)
        if current is not None and not sizes and emptied and _size(current) != deployment.wanted:
            sizes[current.metadata.name] = deployment.wanted
        return sizes
    return _roll(deployment, current, old) if current is not None else {}


def _roll(deployment: Deployment, current: Set, old: Sequence[Set]) -> dict[str, int]:
    fewest, most = bounds(deployment)
    total = _size(current) + sum(map(_size, old))
    if _size(current) > deployment.wanted:
        return {current.metadata.name: deployment.wanted}
    if _size(current) < deployment.wanted and total < most:
        growth = min(deployment.wanted - _size(current), most - total)
        return {current.metadata.name: _size(current) + growth}
    sizes: dict[str, int] = {}
    not_yet = max(0, _size(current) - current.status.available_replicas)
    removable = total - fewest - not_yet
    # Unavailable pods are removed first: that costs no availability.
    for one in sorted(old, key=_revision):
        broken = max(0, _size(one) - one.status.available_replicas)
        removed = min(broken, max(0, removable))
        if removed:
            sizes[one.metadata.name] = _size(one) - removed
            removable -= removed
    available = current.status.available_replicas + sum(o.status.available_replicas for o in old)
    spare = available - fewest
    for one in sorted(old, key=_revision):
        size = sizes.get(one.metadata.name, _size(one))
        removed = min(size, max(0, min(spare, removable)))
        if removed:
            sizes[one.metadata.name] = size - removed
            spare, removable = spare - removed, removable - removed
    return sizes


def _scaled_paused(deployment: Deployment, owned: Sequence[Set]) -> dict[str, int]:
    """Sizes for a paused Deployment: its newest ReplicaSet follows ``replicas``, the template
    stays.
    """
    newest = max(owned, key=_revision, default=None)
    if newest is None:
        return {}
    others = sum(_size(one) for one in owned if one is not newest)
    size = max(0, deployment.wanted - others)
    return {newest.metadata.name: size} if size != _size(newest) else {}


def _forgotten(deployment: Deployment, old: Sequence[Set]) -> tuple[str, ...]:
    limit = deployment.spec.revision_history_limit
    keep = 10 if limit is None else limit
    empty = sorted((o for o in old if not _size(o) and not o.status.replicas), key=_revision)
    return tuple(one.metadata.name for one in empty[: max(0, len(empty) - keep)])


def _status(
    deployment: Deployment, current: Set | None, owned: Sequence[Set], now: datetime
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
        unavailable_replicas=max(0, sum(map(_size, owned)) - available),
        collision_count=deployment.status.collision_count,
    )
    done = current is not None and updated == replicas == available == deployment.wanted
    enough = available >= bounds(deployment)[0]
    conditions = [
        _condition(
            deployment,
            "Available",
            enough,
            "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
            f"Deployment {'has' if enough else 'does not have'} minimum availability.",
            now,
        ),
        _condition(
            deployment,
            "Progressing",
            True,
            "NewReplicaSetAvailable" if done else "ReplicaSetUpdated",
            "All pods have the current template." if done else "Pods are being replaced.",
            now,
        ),
    ]
    return msgspec.structs.replace(status, conditions=conditions)


def _condition(
    deployment: Deployment, kind: str, true: bool, reason: str, message: str, now: datetime
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
