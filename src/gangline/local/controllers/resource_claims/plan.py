"""Decisions about claims of devices, as in kube-controller-manager.

1. A pod that names a template gets a claim, which it owns; the pod's status names the claim.
2. A claim is reserved for pods that have not ended. Without one it loses its devices and the
   finalizer that protected it, and it is deleted if it was created for a pod that has ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from gangline.api.core.devices import (
    FINALIZER,
    POD_CLAIM_ANNOTATION,
    ClaimConsumer,
    ResourceClaim,
    ResourceClaimTemplate,
)
from gangline.api.core.pod import Pod, PodResourceClaim
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import PODS
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
