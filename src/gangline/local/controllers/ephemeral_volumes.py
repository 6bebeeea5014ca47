"""Ephemeral volumes: each gets a claim, made from its template and owned by the pod."""

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.core.storage import PersistentVolumeClaim
from gangline.api.core.volumes import PersistentVolumeClaimTemplate
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import PERSISTENT_VOLUME_CLAIMS, PODS
from gangline.kube.errors import AlreadyExists, ApiError
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import ControllerContext, QueueLoop
from gangline.local.controllers.replica_sets.plan import owner_reference

REQUEUE_S = 10.0
"""Seconds until a claim of another owner is looked at again."""


def ephemeral_claims(pod: Pod) -> list[PersistentVolumeClaim]:
    owner = owner_reference(PODS, pod)
    claims = []
    for volume in pod.spec.volumes:
        if volume.ephemeral is not None:
            template = volume.ephemeral.volume_claim_template or PersistentVolumeClaimTemplate()
            metadata = ObjectMeta(
                name=f"{pod.metadata.name}-{volume.name}",
                namespace=pod.metadata.namespace,
                labels=template.metadata.labels,
                annotations=template.metadata.annotations,
                owner_references=[owner],
            )
            claims.append(PersistentVolumeClaim(metadata=metadata, spec=template.spec))
    return claims


class EphemeralVolumeController(QueueLoop):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._pods = context.informers.informer(PODS)
        self._claims = context.informers.informer(PERSISTENT_VOLUME_CLAIMS)
        self._queue = self._add_queue("ephemeral-volumes", self._reconcile)
        self._pods.add_listener(self._pod_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is None and new is not None and any(v.ephemeral for v in new.spec.volumes):
            self._queue.add(object_key(new))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        pod = self._pods.get(key.namespace, key.name)
        if pod is None or pod.metadata.deletion_timestamp or pod.status.phase in TERMINAL_PHASES:
            return None
        for claim in ephemeral_claims(pod):
            name = claim.metadata.name
            present = self._claims.get(key.namespace, name)
            try:
                if present is None:
                    present = await self._client.create(
                        PERSISTENT_VOLUME_CLAIMS, claim, key.namespace
                    )
            except AlreadyExists:
                present = await self._client.get(PERSISTENT_VOLUME_CLAIMS, name, key.namespace)
            except ApiError as error:
                message = f"ephemeral volume {name}: {error}"
                self._recorder.event(pod, "Warning", "FailedBinding", message)
                raise
            owner = present.metadata.controller
            if owner is None or owner.uid != pod.metadata.uid:
                message = f'PVC "{key.namespace}/{name}" was not created for the pod'
                self._recorder.event(pod, "Warning", "FailedBinding", message)
                return REQUEUE_S
        return None
