"""Volume binder and provisioner: binds claims to volumes, and makes local folders as volumes.

A claim takes the smallest free volume that fits. Otherwise its storage class provisions one, if the
class has our provisioner: a folder below the cluster's directory. All nodes are on this machine, so
every access mode holds. A claim whose class waits for the first consumer is left to the scheduler,
which reserves a volume for it, or selects the node for which one is provisioned.

`plan_claim` and `plan_volume` (pure) decide; the controller makes folders, writes, and cleans up
after deleted claims.
"""

import asyncio
import contextlib
import shutil
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
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.meta.selectors import selector_from_object
from gangline.api.quantity import parse_whole
from gangline.api.resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import ControllerContext, QueueLoop, patch_status

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


BY_CLAIM = "claim"
DEFAULT_CLASS_NAME = "local"


def _claims_of(pod: Pod) -> list[str]:
    return [
        f"{pod.metadata.namespace}/{volume.persistent_volume_claim.claim_name}"
        for volume in pod.spec.volumes
        if volume.persistent_volume_claim is not None
    ]


class VolumeBinderController(QueueLoop):
    """Two queues: claims that need a volume, and volumes whose claim may be deleted."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._folder = context.settings.volumes
        self._claims = context.informers.informer(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = context.informers.informer(PERSISTENT_VOLUMES)
        self._classes = context.informers.informer(STORAGE_CLASSES)
        self._pods = context.informers.informer(PODS, indexes={BY_CLAIM: _claims_of})
        # Invariant: one worker for claims, since two could bind the same volume.
        self._for_claims = self._add_queue("claims", self._reconcile_claim, workers=1)
        self._for_volumes = self._add_queue("volumes", self._reconcile_volume)
        self._claims.add_listener(self._claim_changed)
        self._volumes.add_listener(self._volume_changed)
        self._classes.add_listener(lambda *_: self._requeue_pending_claims())
        self._pods.add_listener(self._pod_changed)

    async def run(self) -> None:
        await self._make_default_class()
        await super().run()

    async def _make_default_class(self) -> None:
        if any(self._classes.items()):
            return
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": DEFAULT_CLASS_NAME,
                "annotations": {DEFAULT_CLASS_ANNOTATION: "true"},
            },
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "Immediate",
        }
        with contextlib.suppress(AlreadyExists):
            await self._client.create(STORAGE_CLASSES, body)

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        if new is not None:
            self._for_claims.add(object_key(new))
        for claim in (old, new):
            if claim is not None and claim.spec.volume_name:
                self._for_volumes.add(claim.spec.volume_name)

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        volume = new or old
        assert volume is not None
        self._for_volumes.add(volume.metadata.name)
        ref = volume.spec.claim_ref
        if ref is not None:
            self._for_claims.add(ObjectKey(ref.namespace, ref.name))
        else:
            self._requeue_pending_claims()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.status.phase in TERMINAL_PHASES):
            for claim in _claims_of(old):
                namespace, name = claim.split("/")
                self._for_claims.add(ObjectKey(namespace, name))
                for volume in self._volumes.items():
                    ref = volume.spec.claim_ref
                    if ref is not None and (ref.namespace, ref.name) == (namespace, name):
                        self._for_volumes.add(volume.metadata.name)

    def _requeue_pending_claims(self) -> None:
        for claim in self._claims.items():
            if claim.status.phase != "Bound":
                self._for_claims.add(object_key(claim))

    async def _reconcile_claim(self, key: ObjectKey) -> None:
        claim = self._claims.get(key.namespace, key.name)
        if claim is None:
            return
        protected = plan_finalizers(claim, in_use=self._claim_in_use(key))
        if protected is not None:
            revision = claim.metadata.resource_version
            metadata = {"resourceVersion": revision, "finalizers": protected}
            await self._patch_claim(claim, {"metadata": metadata})
        if claim.metadata.deletion_timestamp is not None:
            return
        classes = list(self._classes.items())
        match plan_claim(claim, self._volumes.items(), classes, self._folder):
            case BindClaim(volume):
                await self._bind(claim, volume)
            case ProvisionVolume(body):
                await self._provision(claim, body)
            case KeepPending(reason, message):
                await self._set_phase(claim, "Pending")
                self._recorder.event(claim, "Normal", reason, message)
            case ClaimLost(message):
                await self._set_phase(claim, "Lost")
                self._recorder.event(claim, "Warning", "ClaimLost", message)

    async def _provision(self, claim: PersistentVolumeClaim, body: dict[str, Any]) -> None:
        path = Path(body["spec"]["hostPath"]["path"])
        try:
            await asyncio.to_thread(_make_folder, path)
        except OSError as error:
            message = f"cannot make the folder {path}: {error.strerror}"
            self._recorder.event(claim, "Warning", "ProvisioningFailed", message)
            raise
        try:
            volume = await self._client.create(PERSISTENT_VOLUMES, body)
        except AlreadyExists:
            volume = await self._client.get(PERSISTENT_VOLUMES, body["metadata"]["name"])
        else:
            message = f"Successfully provisioned volume {volume.metadata.name}"
            self._recorder.event(claim, "Normal", "ProvisioningSucceeded", message)
        await self._bind(claim, volume)

    async def _bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Point the volume at the claim, then the claim at the volume; both may be repeated."""
        if volume.spec.claim_ref is None or volume.spec.claim_ref.uid != claim.metadata.uid:
            patch = {
                "metadata": {"resourceVersion": volume.metadata.resource_version},
                "spec": {"claimRef": claim_reference(claim)},
            }
            await self._client.patch(PERSISTENT_VOLUMES, volume.metadata.name, patch)
        await self._set_volume_phase(volume, "Bound")
        marks = {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"}
        spec = {"volumeName": volume.metadata.name}
        await self._patch_claim(claim, {"metadata": {"annotations": marks}, "spec": spec})
        status = {
            "phase": "Bound",
            "accessModes": volume.spec.access_modes,
            "capacity": volume.spec.capacity,
        }
        await self._patch_claim(claim, {"status": status}, "status")

    async def _set_phase(self, claim: PersistentVolumeClaim, phase: str) -> None:
        if claim.status.phase != phase:
            await self._patch_claim(claim, {"status": {"phase": phase}}, "status")

    async def _patch_claim(
        self, claim: PersistentVolumeClaim, patch: dict[str, Any], subresource: str = ""
    ) -> None:
        meta = claim.metadata
        with contextlib.suppress(NotFound):
            await self._client.patch(
                PERSISTENT_VOLUME_CLAIMS,
                meta.name,
                patch,
                meta.namespace,
                subresource=subresource,
            )

    async def _reconcile_volume(self, name: str) -> None:
        volume = self._volumes.get(None, name)
        if volume is None:
            return
        ref = volume.spec.claim_ref
        claim = self._claims.get(ref.namespace, ref.name) if ref is not None else None
        in_use = ref is not None and self._claim_in_use(ObjectKey(ref.namespace, ref.name))
        phase = plan_volume(volume, claim, in_use=in_use)
        if phase is None:
            await self._delete(volume)
        else:
            await self._set_volume_phase(volume, phase)

    def _claim_in_use(self, key: ObjectKey) -> bool:
        users = self._pods.by_index(BY_CLAIM, f"{key.namespace}/{key.name}")
        return any(pod.status.phase not in TERMINAL_PHASES for pod in users)

    async def _delete(self, volume: PersistentVolume) -> None:
        # Only folders below the cluster's own are removed, whatever path the object names.
        path = self._folder / volume.metadata.name
        if volume.spec.host_path is not None and Path(volume.spec.host_path.path) == path:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        with contextlib.suppress(NotFound):
            await self._client.delete(PERSISTENT_VOLUMES, volume.metadata.name)

    async def _set_volume_phase(self, volume: PersistentVolume, phase: str) -> None:
        if volume.status.phase == phase:
            return
        patch = {"status": {"phase": phase}}
        await patch_status(self._client, PERSISTENT_VOLUMES, volume, patch)


def _make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)  # Pods of any user may write, as in volumes made by local provisioners.
