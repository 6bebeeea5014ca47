"""Decisions about claims of devices: what pods need, and when claims are freed."""

from typing import Any

import msgspec
import pytest

from gangline.api.core.devices import (
    FINALIZER,
    POD_CLAIM_ANNOTATION,
    ResourceClaim,
    ResourceClaimTemplate,
)
from gangline.api.core.pod import Pod
from gangline.local.controllers import resource_claims
from gangline.local.controllers.resource_claims import ClaimChange

CLAIMS = [
    {"name": "gpu", "resourceClaimTemplateName": "one-gpu"},
    {"name": "shared", "resourceClaimName": "s"},
]
DEVICES = {"devices": {"results": [{"request": "gpu", "driver": "d", "pool": "p", "device": "0"}]}}


def pod(phase: str = "Pending", deleted: bool = False, node: str = "", **status: Any) -> Pod:
    metadata = {"name": "p", "namespace": "d", "uid": "u"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"resourceClaims": CLAIMS, "nodeName": node}
    return msgspec.convert(
        {"metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}, Pod
    )


def claim(users: int = 0, allocated: bool = True, deleted: bool = False) -> ResourceClaim:
    metadata: dict[str, Any] = {"name": "c", "finalizers": ["other", FINALIZER]}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    reserved = [{"resource": "pods", "name": f"p{n}", "uid": f"u{n}"} for n in range(users)]
    status = {"reservedFor": reserved, "allocation": DEVICES if allocated else None}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)


def test_claim_of_a_template_is_owned_by_its_pod_and_named_in_its_status() -> None:
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    template = msgspec.convert(
        {"spec": {"metadata": metadata, "spec": spec}}, ResourceClaimTemplate
    )
    (missing,) = resource_claims.missing_claims(pod())
    body = resource_claims.claim_body(pod(), missing.name, template)
    assert (body["metadata"]["generateName"], body["spec"]) == ("p-gpu-", spec)
    assert body["metadata"]["labels"] == {"team": "a"}
    assert body["metadata"]["annotations"] == {"note": "b", POD_CLAIM_ANNOTATION: "gpu"}
    created = msgspec.convert(
        {**body, "metadata": {**body["metadata"], "name": "x"}}, ResourceClaim
    )
    assert resource_claims.created_claim(pod(), "gpu", [created]) is created
    assert resource_claims.created_claim(pod(), "nic", [created]) is None
    patch = resource_claims.status_patch(pod(), {"gpu": "x"})
    named = pod(resourceClaimStatuses=patch["status"]["resourceClaimStatuses"])
    assert resource_claims.claim_names(named) == {"gpu": "x", "shared": "s"}
    assert not resource_claims.missing_claims(named)


@pytest.mark.parametrize("ended", [pod("Succeeded"), pod("Failed", node="n"), pod(deleted=True)])
def test_pod_that_has_ended_gets_no_claims(ended: Pod) -> None:
    assert resource_claims.has_ended(ended)
    assert not resource_claims.missing_claims(ended)


@pytest.mark.parametrize(
    ("present", "left", "owner", "change"),
    [
        pytest.param(claim(2), 2, None, ClaimChange(), id="all users run"),
        pytest.param(
            claim(2),
            1,
            None,
            ClaimChange({"reservedFor": [{"resource": "pods", "name": "p0", "uid": "u0"}]}),
            id="one of two has ended",
        ),
        pytest.param(
            claim(1),
            0,
            None,
            ClaimChange({"reservedFor": None, "allocation": None}, ["other"]),
            id="the last has ended",
        ),
        pytest.param(
            claim(allocated=False), 0, None, ClaimChange(), id="a scheduler is about to allocate it"
        ),
        pytest.param(
            claim(allocated=False, deleted=True),
            0,
            None,
            ClaimChange(finalizers=["other"]),
            id="deleted without devices",
        ),
        pytest.param(
            claim(1),
            0,
            pod("Succeeded"),
            ClaimChange({"reservedFor": None, "allocation": None}, ["other"], is_deleted=True),
            id="its own pod has ended",
        ),
        pytest.param(claim(1), 1, pod("Running", node="n"), ClaimChange(), id="its own pod runs"),
    ],
)
def test_claim_is_freed_after_its_last_user(
    present: ResourceClaim, left: int, owner: Pod | None, change: ClaimChange
) -> None:
    assert resource_claims.plan_claim(present, present.status.reserved_for[:left], owner) == change
