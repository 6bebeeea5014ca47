"""Persistent volumes: claims and the volumes they get, and volumes without a claim."""

from pathlib import Path
from typing import Any

import pytest

from gangline.api.core.core import (
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from gangline.api.core.storage import (
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    VolumeResourceRequirements,
)
from gangline.api.meta.objects import ObjectMeta
from gangline.local.controllers import volume_binder as binder
from unit.local.controllers.builders import NOW

LOCAL = StorageClass(
    metadata=ObjectMeta(name="local", annotations={binder.DEFAULT_CLASS_ANNOTATION: "true"}),
    provisioner=binder.PROVISIONER,
)
FOREIGN = StorageClass(metadata=ObjectMeta(name="cloud"), provisioner="cloud.example/disk")


def a_claim(size: str = "1Gi", phase: str = "Pending", **spec: Any) -> PersistentVolumeClaim:
    resources = VolumeResourceRequirements(requests={"storage": size})
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name="c", namespace="ns", uid="uid-c"),
        spec=PersistentVolumeClaimSpec(access_modes=["ReadWriteOnce"], resources=resources, **spec),
        status=PersistentVolumeClaimStatus(phase=phase),
    )


def a_volume(name: str, size: str = "1Gi", **spec: Any) -> PersistentVolume:
    given: dict[str, Any] = {"access_modes": ["ReadWriteOnce"], "capacity": {"storage": size}}
    return PersistentVolume(
        metadata=ObjectMeta(name=name), spec=PersistentVolumeSpec(**(given | spec))
    )


def decide(claim: PersistentVolumeClaim, *volumes: PersistentVolume) -> binder.ClaimAction:
    return binder.plan_claim(claim, volumes, [LOCAL, FOREIGN], Path("/data"))


def test_a_claim_without_a_class_is_given_a_folder_of_the_default_class() -> None:
    action = decide(a_claim())
    assert isinstance(action, binder.ProvisionVolume)
    assert action.volume["spec"]["hostPath"]["path"] == "/data/pvc-uid-c"
    assert action.volume["spec"]["claimRef"]["uid"] == "uid-c"


def test_a_claim_takes_the_smallest_volume_that_fits() -> None:
    small, fitting, large = a_volume("s", "1Gi"), a_volume("f", "5Gi"), a_volume("l", "9Gi")
    action = decide(a_claim("2Gi", storage_class_name=""), large, small, fitting)
    assert action == binder.BindClaim(fitting)


def test_claim_that_waits_for_its_first_consumer_is_left_to_the_scheduler() -> None:
    late = StorageClass(
        metadata=ObjectMeta(name="late"),
        provisioner=binder.PROVISIONER,
        volume_binding_mode="WaitForFirstConsumer",
    )
    free = a_volume("v", storage_class_name="late")
    claim = a_claim(storage_class_name="late")

    def action(volume: PersistentVolume) -> binder.ClaimAction:
        return binder.plan_claim(claim, [volume], [late], Path("/data"))

    assert isinstance(action(free), binder.KeepPending)
    reserved = a_volume("v", claim_ref=ObjectReference(namespace="ns", name="c", uid="uid-c"))
    assert action(reserved) == binder.BindClaim(reserved)
    claim.metadata.annotations[binder.SELECTED_NODE] = "node-1"
    assert isinstance(action(free), binder.ProvisionVolume)


def test_a_volume_that_belongs_to_another_claim_is_not_taken() -> None:
    taken = a_volume("v", claim_ref=ObjectReference(namespace="ns", name="other", uid="x"))
    assert isinstance(decide(a_claim(storage_class_name=""), taken), binder.KeepPending)
    action = decide(a_claim(volume_name="v"), taken)
    assert isinstance(action, binder.KeepPending)
    assert "ns/other" in action.message


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (a_claim(storage_class_name="nope"), "no storage class nope"),
        (a_claim(storage_class_name="cloud"), "cloud.example/disk"),
        (a_claim(storage_class_name=""), "no storage class is set"),
        (a_claim(volume_mode="Block"), "no block devices"),
    ],
)
def test_waiting_claim_has_a_reason(claim: PersistentVolumeClaim, message: str) -> None:
    action = decide(claim)
    assert isinstance(action, binder.KeepPending)
    assert message in action.message


def test_a_bound_claim_whose_volume_vanished_is_lost() -> None:
    assert isinstance(decide(a_claim(phase="Bound", volume_name="v")), binder.ClaimLost)


@pytest.mark.parametrize(
    ("policy", "ours", "in_use", "fate"),
    [
        pytest.param(
            "Delete",
            True,
            False,
            None,
            id="a provisioned volume is deleted with its claim",
        ),
        pytest.param("Delete", True, True, "Released", id="but not under a running pod"),
        pytest.param("Retain", True, False, "Released", id="unless its reclaim policy is Retain"),
        pytest.param("Delete", False, False, "Released", id="others' are left alone"),
    ],
)
def test_a_volume_without_its_claim(
    policy: str, ours: bool, in_use: bool, fate: str | None
) -> None:
    volume = PersistentVolume(
        metadata=ObjectMeta(
            name="v",
            annotations={binder.PROVISIONED_BY: binder.PROVISIONER} if ours else {},
        ),
        spec=PersistentVolumeSpec(
            persistent_volume_reclaim_policy=policy,
            claim_ref=ObjectReference(namespace="ns", name="c", uid="uid-c"),
        ),
        status=PersistentVolumeStatus(phase="Bound"),
    )
    assert binder.plan_volume(volume, None, in_use=in_use) == fate


@pytest.mark.parametrize(
    ("finalizers", "going", "in_use", "expected"),
    [
        pytest.param(
            [],
            False,
            False,
            [binder.PVC_PROTECTION_FINALIZER],
            id="a new claim is protected",
        ),
        pytest.param([binder.PVC_PROTECTION_FINALIZER], False, True, None, id="once"),
        pytest.param(
            [binder.PVC_PROTECTION_FINALIZER],
            True,
            True,
            None,
            id="and stays while a pod uses it",
        ),
        pytest.param(
            ["a", binder.PVC_PROTECTION_FINALIZER], True, False, ["a"], id="then it may go"
        ),
        pytest.param([], True, False, None, id="a claim in deletion gets no finalizer"),
    ],
)
def test_a_claim_in_use_is_protected(
    finalizers: list[str], going: bool, in_use: bool, expected: list[str] | None
) -> None:
    metadata = ObjectMeta(
        name="c", finalizers=finalizers, deletion_timestamp=NOW if going else None
    )
    claim = PersistentVolumeClaim(metadata=metadata)
    assert binder.plan_finalizers(claim, in_use=in_use) == expected
