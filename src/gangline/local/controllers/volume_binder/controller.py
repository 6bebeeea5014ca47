"""Volume binder: binds claims to volumes, makes folders for them, and cleans up after deleted
claims.
"""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

from gangline.api.core.core import PersistentVolume, PersistentVolumeClaim
from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from gangline.kube.errors import AlreadyExists, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import ControllerContext, QueueLoop, patch_status
from gangline.local.controllers.volume_binder import plan

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
                "annotations": {plan.DEFAULT_CLASS_ANNOTATION: "true"},
            },
            "provisioner": plan.PROVISIONER,
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
        protected = plan.plan_finalizers(claim, in_use=self._claim_in_use(key))
        if protected is not None:
            revision = claim.metadata.resource_version
            metadata = {"resourceVersion": revision, "finalizers": protected}
            await self._patch_claim(claim, {"metadata": metadata})
        if claim.metadata.deletion_timestamp is not None:
            return
        classes = list(self._classes.items())
        match plan.plan_claim(claim, self._volumes.items(), classes, self._folder):
            case plan.BindClaim(volume):
                await self._bind(claim, volume)
            case plan.ProvisionVolume(body):
                await self._provision(claim, body)
            case plan.KeepPending(reason, message):
                await self._set_phase(claim, "Pending")
                self._recorder.event(claim, "Normal", reason, message)
            case plan.ClaimLost(message):
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
                "spec": {"claimRef": plan.claim_reference(claim)},
            }
            await self._client.patch(PERSISTENT_VOLUMES, volume.metadata.name, patch)
        await self._set_volume_phase(volume, "Bound")
        marks = {plan.BIND_COMPLETED: "yes", plan.BOUND_BY_CONTROLLER: "yes"}
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
        phase = plan.plan_volume(volume, claim, in_use=in_use)
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
