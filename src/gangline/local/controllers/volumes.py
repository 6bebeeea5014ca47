"""Persistent volumes: which volume a claim gets, and what happens to a volume without a claim.

A claim takes the smallest free volume that fits. Otherwise its storage class provisions one, if the
class has our provisioner: a folder below the cluster's directory. All nodes are on this machine, so
every access mode holds, and ``WaitForFirstConsumer`` binds immediately.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeAlias

from gangline.api.core import ObjectReference, PersistentVolume, PersistentVolumeClaim, StorageClass
from gangline.api.quantity import whole
from gangline.api.selectors import from_object

PROVISIONER = "gangline.dev/local-folder"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
PROTECTION = "kubernetes.io/pvc-protection"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class Keep(Enum):
    """Nothing has to change."""

    AS_IT_IS = auto()


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the claim to this volume."""

    volume: PersistentVolume


@dataclass(frozen=True, slots=True)
class Provision:
    """Create this volume for the claim."""

    volume: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wait:
    """The claim stays pending; its event gives the reason."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The claim's volume was deleted or belongs to another claim."""

    message: str


ClaimAction: TypeAlias = Keep | Bind | Provision | Wait | Lost


def decide_claim(
    claim: PersistentVolumeClaim,
    volumes: Iterable[PersistentVolume],
    classes: Sequence[StorageClass],
    folder: Path,
) -> ClaimAction:
    """Return the action for a claim. ``folder`` is the parent folder of new volumes."""
    if claim.metadata.deletion_timestamp is not None:
        return Keep.AS_IT_IS
    known = {volume.metadata.name: volume for volume in volumes}
    if claim.spec.volume_name:
        return _decide_named(claim, known.get(claim.spec.volume_name))
    if ours := next((v for v in known.values() if refers_to(v, claim)), None):
        return Bind(ours)
    wanted_class = class_name(claim, classes)
    if fitting := _smallest(claim, known.values(), wanted_class):
        return Bind(fitting)
    return _provide(claim, wanted_class, classes, folder)


def decide_finalizers(claim: PersistentVolumeClaim, *, in_use: bool) -> list[str] | None:
    """Return the finalizers that a claim should have; None if they are up to date.

    A claim that is deleted while a pod uses it stays until the pod has ended.
    """
    present = claim.metadata.finalizers
    if claim.metadata.deletion_timestamp is None:
        return None if PROTECTION in present else [*present, PROTECTION]
    if in_use or PROTECTION not in present:
        return None
    return [one for one in present if one != PROTECTION]


def _decide_named(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> ClaimAction:
    bound = claim.status.phase == "Bound"
    if volume is None:
        message = f"volume {claim.spec.volume_name} does not exist"
        return Lost(message) if bound else Wait("FailedBinding", message)
    if refers_to(volume, claim):
        complete = bound and BIND_COMPLETED in claim.metadata.annotations
        settled = volume.status.phase == "Bound" and volume.spec.claim_ref is not None
        return Keep.AS_IT_IS if complete and settled else Bind(volume)
    if volume.spec.claim_ref is None:
        return Bind(volume)
    owner = volume.spec.claim_ref
    message = f"volume {volume.metadata.name} belongs to claim {owner.namespace}/{owner.name}"
    return Lost(message) if bound else Wait("FailedBinding", message)


def refers_to(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """True if a volume is reserved for this claim (by name, and by uid once it is set)."""
    ref = volume.spec.claim_ref
    if ref is None or (ref.namespace, ref.name) != (claim.metadata.namespace, claim.metadata.name):
        return False
    return not ref.uid or ref.uid == claim.metadata.uid


def class_name(claim: PersistentVolumeClaim, classes: Iterable[StorageClass]) -> str:
    """The storage class of a claim, or the default class if it names none."""
    if claim.spec.storage_class_name is not None:
        return claim.spec.storage_class_name
    defaults = (c for c in classes if c.metadata.annotations.get(DEFAULT_CLASS) == "true")
    return next((one.metadata.name for one in defaults), "")


def _size(amounts: dict[str, int | float | str]) -> int:
    return whole(amounts.get("storage", 0))


def _smallest(
    claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume], wanted_class: str
) -> PersistentVolume | None:
    fitting = [volume for volume in volumes if _fits(claim, volume, wanted_class)]
    return min(fitting, key=lambda one: (_size(one.spec.capacity), one.metadata.name), default=None)


def _fits(claim: PersistentVolumeClaim, volume: PersistentVolume, wanted_class: str) -> bool:
    spec = volume.spec
    return (
        spec.claim_ref is None
        and volume.metadata.deletion_timestamp is None
        and spec.storage_class_name == wanted_class
        and (spec.volume_mode or "Filesystem") == (claim.spec.volume_mode or "Filesystem")
        and set(claim.spec.access_modes) <= set(spec.access_modes)
        and _size(spec.capacity) >= _size(claim.spec.resources.requests)
        and (
            claim.spec.selector is None
            or from_object(claim.spec.selector).matches(volume.metadata.labels)
        )
    )


def _provide(
    claim: PersistentVolumeClaim, wanted_class: str, classes: Iterable[StorageClass], folder: Path
) -> ClaimAction:
    if not wanted_class:
        return Wait("FailedBinding", "no volume fits, and no storage class is set to make one")
    found = next((one for one in classes if one.metadata.name == wanted_class), None)
    if found is None:
        return Wait("ProvisioningFailed", f"there is no storage class {wanted_class}")
    if found.provisioner != PROVISIONER:
        message = f"class {wanted_class} belongs to {found.provisioner}, which is not run here"
        return Wait("ExternalProvisioning", message)
    if claim.spec.volume_mode == "Block":
        return Wait("ProvisioningFailed", f"class {wanted_class} makes folders, no block devices")
    return Provision(new_volume(claim, found, folder))


def new_volume(claim: PersistentVolumeClaim, made_by: StorageClass, folder: Path) -> dict[str, Any]:
    """Return the manifest of a volume for a claim; its name follows from the claim's uid, so a
    repeated
    creation adds no duplicate.
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
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace,
                "name": claim.metadata.name,
                "uid": claim.metadata.uid,
            },
        },
    }


class VolumeFate(Enum):
    """The next state of a volume."""

    KEEP = auto()
    AVAILABLE = auto()
    BOUND = auto()
    RELEASED = auto()
    DELETE = auto()


def decide_volume(
    volume: PersistentVolume, claim: PersistentVolumeClaim | None, *, in_use: bool
) -> VolumeFate:
    """Return the next state of a volume; ``claim`` is the one that it references, None if there is
    none.

    ``in_use`` is true while a pod still uses the volume, so that its content must stay.
    """
    ref: ObjectReference | None = volume.spec.claim_ref
    if ref is None or not ref.uid:
        return _unless(volume, VolumeFate.AVAILABLE, "Available")
    if claim is not None and claim.metadata.uid == ref.uid:
        return _unless(volume, VolumeFate.BOUND, "Bound")
    ours = volume.metadata.annotations.get(PROVISIONED_BY) == PROVISIONER
    deletes = ours and volume.spec.persistent_volume_reclaim_policy == "Delete"
    if deletes and not in_use:
        return VolumeFate.DELETE
    return _unless(volume, VolumeFate.RELEASED, "Released")


def _unless(volume: PersistentVolume, fate: VolumeFate, phase: str) -> VolumeFate:
    return VolumeFate.KEEP if volume.status.phase == phase else fate
