"""Claims of devices: created for pods from templates, and freed when no pod uses them.

1. A pod that names a template gets a claim, which it owns; the pod's status names the claim.
2. A claim is reserved for pods that have not ended. Without one it loses its devices and the
   finalizer that protected it, and it is deleted if it was created for a pod that has ended.

`missing_claims` and `plan_claim` (pure) decide, as in kube-controller-manager.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from gangline.api.core.devices import (
    FINALIZER,
    POD_CLAIM_ANNOTATION,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    ClaimConsumer,
    ResourceClaim,
    ResourceClaimTemplate,
)
from gangline.api.core.pod import Pod, PodResourceClaim
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import PODS
from gangline.kube.errors import ApiError, Conflict, NotFound
from gangline.kube.informers.informer import ObjectKey, object_key
from gangline.local.controllers.context import (
    BY_OWNER,
    ControllerContext,
    QueueLoop,
    enqueue_changes,
    owner_uids,
    patch_status,
)
from gangline.local.controllers.replica_sets.plan import controller_reference


def has_ended(pod: Pod) -> bool:
    """Return whether a pod uses no devices any more, or never will."""
    is_deleted_unplaced = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
    return pod.status.phase in TERMINAL_PHASES or is_deleted_unplaced


def claim_names(pod: Pod) -> dict[str, str]:
    names = {
        status["name"]: status.get("resourceClaimName") or ""
        for status in pod.status.resource_claim_statuses
    }
    names |= {
        c.name: c.resource_claim_name for c in pod.spec.resource_claims if c.resource_claim_name
    }
    return names


def missing_claims(pod: Pod) -> list[PodResourceClaim]:
    """Return the claims that have to be created, or found, for a pod."""
    if has_ended(pod) or pod.metadata.deletion_timestamp is not None:
        return []
    names = claim_names(pod)
    return [c for c in pod.spec.resource_claims if c.name not in names]


def created_claim(pod: Pod, name: str, claims: Iterable[ResourceClaim]) -> ResourceClaim | None:
    for claim in claims:
        if claim.is_for(pod) and claim.metadata.annotations.get(POD_CLAIM_ANNOTATION) == name:
            return claim
    return None


def claim_body(pod: Pod, name: str, template: ResourceClaimTemplate) -> dict[str, Any]:
    metadata = template.spec.metadata
    return {
        "metadata": {
            "generateName": f"{pod.metadata.name}-{name}-",
            "labels": metadata.labels,
            "annotations": {**metadata.annotations, POD_CLAIM_ANNOTATION: name},
            "ownerReferences": [controller_reference(PODS, pod)],
        },
        "spec": template.spec.spec,
    }


def status_patch(pod: Pod, created: dict[str, str]) -> dict[str, Any]:
    new = [{"name": name, "resourceClaimName": claim} for name, claim in created.items()]
    listed = [*pod.status.resource_claim_statuses, *new]
    return {"metadata": {"uid": pod.metadata.uid}, "status": {"resourceClaimStatuses": listed}}


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """What has to be written about a claim; None: nothing."""

    status: dict[str, Any] | None = None
    finalizers: list[str] | None = None
    is_deleted: bool = False


def plan_claim(
    claim: ResourceClaim, consumers: list[ClaimConsumer], owner: Pod | None
) -> ClaimChange:
    """Return what has to change.

    Args:
        consumers: those of its consumers that have not ended.
        owner: the pod that it was created for, as long as it exists.
    """
    status: dict[str, Any] = {}
    if len(consumers) < len(claim.status.reserved_for):
        status["reservedFor"] = msgspec.to_builtins(consumers) or None
    if claim.status.allocation is not None and not consumers:
        status["allocation"] = None
    is_deleted = claim.metadata.deletion_timestamp is not None
    # A scheduler adds the finalizer before the devices: one without devices is left alone.
    is_freed = "allocation" in status or (is_deleted and claim.status.allocation is None)
    finalizers = claim.metadata.finalizers
    left = [name for name in finalizers if name != FINALIZER] if is_freed else finalizers
    return ClaimChange(
        status=status or None,
        finalizers=left if left != finalizers else None,
        is_deleted=not is_deleted and owner is not None and has_ended(owner),
    )


BY_TEMPLATE = "resource-claim-template"


def _templates_of(pod: Pod) -> list[str]:
    names = {claim.resource_claim_template_name for claim in pod.spec.resource_claims}
    return [f"{pod.metadata.namespace}/{name}" for name in sorted(names) if name]


class ResourceClaimController(QueueLoop):
    """Two queues: pods that need claims, and claims that may be freed."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        informers = context.informers
        self._pods = informers.informer(PODS, indexes={BY_TEMPLATE: _templates_of})
        self._claims = informers.informer(RESOURCE_CLAIMS, indexes={BY_OWNER: owner_uids})
        self._templates = informers.informer(RESOURCE_CLAIM_TEMPLATES)
        self._for_pods = self._add_queue("resource claims", self._reconcile_pod)
        self._for_claims = self._add_queue("resource claim users", self._reconcile_claim)
        self._pods.add_listener(self._pod_changed)
        self._claims.add_listener(enqueue_changes(self._for_claims))
        self._templates.add_listener(self._template_changed)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if not pod.spec.resource_claims:
            return
        if new is not None and missing_claims(new):
            self._for_pods.add(object_key(new))
        if new is None or has_ended(new):
            for name in claim_names(pod).values():
                self._for_claims.add(ObjectKey(pod.metadata.namespace, name))

    def _template_changed(
        self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None
    ) -> None:
        if new is not None:
            template = f"{new.metadata.namespace}/{new.metadata.name}"
            for pod in self._pods.by_index(BY_TEMPLATE, template):
                self._for_pods.add(object_key(pod))

    async def _reconcile_pod(self, key: ObjectKey) -> None:
        pod = self._pods.get(key.namespace, key.name)
        missing = missing_claims(pod) if pod is not None else []
        if pod is None or not missing:
            return
        own = self._claims.by_index(BY_OWNER, pod.metadata.uid)
        created: dict[str, str] = {}
        for entry in missing:
            claim = created_claim(pod, entry.name, own)
            if claim is None:
                template_name = entry.resource_claim_template_name
                template = self._templates.get(key.namespace, template_name)
                if template is None:
                    message = f'resourceclaimtemplate "{template_name}" not found'
                    self._recorder.event(pod, "Warning", "FailedResourceClaimCreation", message)
                    continue
                body = claim_body(pod, entry.name, template)
                try:
                    claim = await self._client.create(RESOURCE_CLAIMS, body, key.namespace)
                except ApiError as error:
                    message = f"claim {entry.name}: {error}"
                    self._recorder.event(pod, "Warning", "FailedResourceClaimCreation", message)
                    raise
            created[entry.name] = claim.metadata.name
        if created:
            await patch_status(self._client, PODS, pod, status_patch(pod, created))

    async def _reconcile_claim(self, key: ObjectKey) -> None:
        claim = self._claims.get(key.namespace, key.name)
        if claim is None:
            return
        consumers = [c for c in claim.status.reserved_for if await self._uses(claim, c)]
        owner = claim.metadata.controller
        pod = await self._pod(key.namespace, owner.name, owner.uid) if owner is not None else None
        change = plan_claim(claim, consumers, pod)
        with contextlib.suppress(NotFound, Conflict):  # after a conflict the new state follows
            revision = claim.metadata.resource_version
            if change.status is not None:
                patch = {"metadata": {"resourceVersion": revision}, "status": change.status}
                claim = await self._client.patch(
                    RESOURCE_CLAIMS, key.name, patch, key.namespace, subresource="status"
                )
                revision = claim.metadata.resource_version
            if change.finalizers is not None:
                metadata = {"resourceVersion": revision, "finalizers": change.finalizers}
                await self._client.patch(
                    RESOURCE_CLAIMS, key.name, {"metadata": metadata}, key.namespace
                )
            if change.is_deleted:
                await self._client.delete(RESOURCE_CLAIMS, key.name, key.namespace)

    async def _uses(self, claim: ResourceClaim, consumer: ClaimConsumer) -> bool:
        """Return whether a consumer has not ended; others than pods never end here."""
        if consumer.api_group or consumer.resource != "pods":
            return True
        pod = await self._pod(claim.metadata.namespace, consumer.name, consumer.uid)
        return pod is not None and not has_ended(pod)

    async def _pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """Return a pod, also one that the informer has not seen yet."""
        pod = self._pods.get(namespace, name)
        if pod is None or pod.metadata.uid != uid:
            with contextlib.suppress(NotFound):
                pod = await self._client.get(PODS, name, namespace)
        return pod if pod is not None and pod.metadata.uid == uid else None
