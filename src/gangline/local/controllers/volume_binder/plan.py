"""Persistent volumes: which volume a claim gets, and what happens to a volume without a claim.

A claim takes the smallest free volume that fits. Otherwise its storage class provisions one, if the
class has our provisioner: a folder below the cluster's directory. All nodes are on this machine, so
every access mode holds. A claim whose class waits for the first consumer is left to the scheduler,
which reserves a volume for it, or selects the node for which one is provisioned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gangline.api.core.core import (
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from gangline.api.meta.selectors import selector_from_object
from gangline.api.quantity import parse_whole

PROVISIONER = "gangline.dev/local-folder"
DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
PVC_PROTECTION_FINALIZER = "kubernetes.io/pvc-protection"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
WAITS = "WaitForFirstConsumer"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


@dataclass(frozen=True, slots=True)
class BindClaim:
    """Bind the claim to this volume."""

    volume: PersistentVolume


@dataclass(frozen=True, slots=True)
class ProvisionVolume:
    """Create this volume for the claim."""

    volume: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeepPending:
    """The claim stays pending; its event gives the reason."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """The claim's volume was deleted or belongs to another claim."""

    message: str


ClaimAction: TypeAlias = BindClaim | ProvisionVolume | KeepPending | ClaimLost | None
"""None: nothing has to change."""


def plan_claim(
    claim: PersistentVolumeClaim,
    volumes: Iterable[PersistentVolume],
    classes: Sequence[StorageClass],
    folder: Path,
) -> ClaimAction:
    """Return the action for a claim. ``folder`` is the parent folder of new volumes."""
    if claim.metadata.deletion_timestamp is not None:
        return None
    by_name = {volume.metadata.name: volume for volume in volumes}
    if claim.spec.volume_name:
        return _plan_bound_claim(claim, by_name.get(claim.spec.volume_name))
    if ours := next((v for v in by_name.values() if is_reserved_for(v, claim)), None):
        return BindClaim(ours)
    class_name = storage_class_of(claim, classes)
    if any(c.metadata.name == class_name and c.volume_binding_mode == WAITS for c in classes):
        if SELECTED_NODE in claim.metadata.annotations:
            return _provision(claim, class_name, classes, folder)
        message = "waiting for first consumer to be created before binding"
        return KeepPending(WAITS, message)
    if fitting := [volume for volume in by_name.values() if _fits(claim, volume, class_name)]:
        return BindClaim(min(fitting, key=lambda v: (_size(v.spec.capacity), v.metadata.name)))
    return _provision(claim, class_name, classes, folder)


def plan_finalizers(claim: PersistentVolumeClaim, *, in_use: bool) -> list[str] | None:
    """Return the finalizers that a claim should have; None if they are up to date.

    A claim that is deleted while a pod uses it stays until the pod has ended.
    """
    present = claim.metadata.finalizers
    if claim.metadata.deletion_timestamp is None:
        return None if PVC_PROTECTION_FINALIZER in present else [*present, PVC_PROTECTION_FINALIZER]
    if in_use or PVC_PROTECTION_FINALIZER not in present:
        return None
    return [one for one in present if one != PVC_PROTECTION_FINALIZER]


def _plan_bound_claim(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> ClaimAction:
    bound = claim.status.phase == "Bound"
    if volume is None:
        message = f"volume {claim.spec.volume_name} does not exist"
        return ClaimLost(message) if bound else KeepPending("FailedBinding", message)
    if is_reserved_for(volume, claim):
        complete = bound and BIND_COMPLETED in claim.metadata.annotations
        settled = volume.status.phase == "Bound" and volume.spec.claim_ref is not None
        return None if complete and settled else BindClaim(volume)
    if volume.spec.claim_ref is None:
        return BindClaim(volume)
    owner = volume.spec.claim_ref
    message = f"volume {volume.metadata.name} belongs to claim {owner.namespace}/{owner.name}"
    return ClaimLost(message) if bound else KeepPending("FailedBinding", message)


def is_reserved_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """True if a volume is reserved for this claim (by name, and by uid once it is set)."""
    ref = volume.spec.claim_ref
    if ref is None or (ref.namespace, ref.name) != (claim.metadata.namespace, claim.metadata.name):
        return False
    return not ref.uid or ref.uid == claim.metadata.uid


def storage_class_of(claim: PersistentVolumeClaim, classes: Iterable[StorageClass]) -> str:
    if claim.spec.storage_class_name is not None:
        return claim.spec.storage_class_name
    defaults = (
        c for c in classes if c.metadata.annotations.get(DEFAULT_CLASS_ANNOTATION) == "true"
    )
    return next((one.metadata.name for one in defaults), "")


def _size(amounts: dict[str, int | float | str]) -> int:
    return parse_whole(amounts.get("storage", 0))


def _fits(claim: PersistentVolumeClaim, volume: PersistentVolume, class_name: str) -> bool:
    spec = volume.spec
    return (
        spec.claim_ref is None
        and volume.metadata.deletion_timestamp is None
        and spec.storage_class_name == class_name
        and (spec.volume_mode or "Filesystem") == (claim.spec.volume_mode or "Filesystem")
        and set(claim.spec.access_modes) <= set(spec.access_modes)
        and _size(spec.capacity) >= _size(claim.spec.resources.requests)
        and (
            claim.spec.selector is None
            or selector_from_object(claim.spec.selector).matches(volume.metadata.labels)
        )
    )


def _provision(
    claim: PersistentVolumeClaim, class_name: str, classes: Iterable[StorageClass], folder: Path
) -> ClaimAction:
    if not class_name:
        return KeepPending(
            "FailedBinding", "no volume fits, and no storage class is set to make one"
        )
    storage_class = next((one for one in classes if one.metadata.name == class_name), None)
    if storage_class is None:
        return KeepPending("ProvisioningFailed", f"there is no storage class {class_name}")
    if storage_class.provisioner != PROVISIONER:
        message = (
            f"class {class_name} belongs to {storage_class.provisioner}, which is not run here"
        )
        return KeepPending("ExternalProvisioning", message)
    if claim.spec.volume_mode == "Block":
        return KeepPending(
            "ProvisioningFailed", f"class {class_name} makes folders, no block devices"
        )
    return ProvisionVolume(build_volume(claim, storage_class, folder))


def build_volume(
    claim: PersistentVolumeClaim, made_by: StorageClass, folder: Path
) -> dict[str, Any]:
    """Return the manifest of a volume for a claim; its name follows from the claim's uid, so a
    repeated creation adds no duplicate.
    """
    name = f"pvc-{claim.metadata.uid}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": claim.spec.resources.requests.get("storage", "0")},
            "accessModes": claim.spec.access_modes or ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": made_by.reclaim_policy or "Delete",
            "storageClassName": made_by.metadata.name,
            "volumeMode": "Filesystem",
            "hostPath": {"path": str(folder / name), "type": "DirectoryOrCreate"},
            "claimRef": claim_reference(claim),
        },
    }


def claim_reference(claim: PersistentVolumeClaim) -> dict[str, str]:
    meta = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
    }


def plan_volume(
    volume: PersistentVolume, claim: PersistentVolumeClaim | None, *, in_use: bool
) -> str | None:
    """Return the phase of a volume, or None if it is to be deleted; ``claim`` is the one that it
    references, None if there is none.

    ``in_use`` is true while a pod still uses the volume, so that its content must stay.
    """
    ref: ObjectReference | None = volume.spec.claim_ref
    if ref is None or not ref.uid:
        return "Available"
    if claim is not None and claim.metadata.uid == ref.uid:
        return "Bound"
    ours = volume.metadata.annotations.get(PROVISIONED_BY) == PROVISIONER
    deletes = ours and volume.spec.persistent_volume_reclaim_policy == "Delete"
    return None if deletes and not in_use else "Released"
