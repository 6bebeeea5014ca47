"""The effect of a deletion request by kind, finalizers, policy and grace period."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gangline.local.apiserver.core.registry import ServedKind
from gangline.local.apiserver.core.request import ApiRequest
from gangline.local.apiserver.verbs.delete import (
    DeletionRequest,
    apply_deletion,
    read_deletion_request,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = ServedKind("", "v1", "Pod", "pods")
MAP = ServedKind("", "v1", "ConfigMap", "configmaps")


def a_pod(phase: str = "Running", node: str = "n", **meta: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 30}
    if node:
        spec["nodeName"] = node
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pod", "removal", "removed", "grace"),
    [
        pytest.param(a_pod(), DeletionRequest(), False, 30, id="a running pod gets its own grace"),
        pytest.param(a_pod(), DeletionRequest(5), False, 5, id="or what the client says"),
        pytest.param(a_pod(), DeletionRequest(0), True, 0, id="zero removes it immediately"),
        pytest.param(
            a_pod(node=""),
            DeletionRequest(),
            True,
            0,
            id="a pod without a node has no grace period",
        ),
        pytest.param(a_pod("Failed"), DeletionRequest(), True, 0, id="nor does one that has ended"),
        pytest.param(
            a_pod(finalizers=["a/b"]), DeletionRequest(0), False, 0, id="finalizers hold it"
        ),
    ],
)
def test_grace_of_pods(pod: dict[str, Any], removal: DeletionRequest, removed: bool, grace: int):
    assert apply_deletion(POD, pod, removal, NOW) is removed
    assert pod["metadata"]["deletionGracePeriodSeconds"] == grace


def test_a_second_deletion_only_shortens_the_grace():
    pod = a_pod()
    apply_deletion(POD, pod, DeletionRequest(30), NOW)
    assert pod["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    apply_deletion(POD, pod, DeletionRequest(60), NOW)
    assert pod["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    apply_deletion(POD, pod, DeletionRequest(10), NOW)
    assert pod["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:10Z"
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 10


@pytest.mark.parametrize(
    ("policy", "before", "after", "removed"),
    [
        ("", [], None, True),
        ("Background", ["orphan"], None, True),
        ("Foreground", [], ["foregroundDeletion"], False),
        ("Orphan", ["foregroundDeletion", "a/b"], ["a/b", "orphan"], False),
        ("", ["foregroundDeletion"], ["foregroundDeletion"], False),
    ],
)
def test_policies_become_finalizers(policy: str, before: list[str], after: Any, removed: bool):
    obj = {"kind": "ConfigMap", "metadata": {"finalizers": before} if before else {}}
    assert apply_deletion(MAP, obj, DeletionRequest(policy=policy), NOW) is removed
    assert obj["metadata"].get("finalizers") == after
    assert ("deletionTimestamp" in obj["metadata"]) is not removed


def test_deletion_increments_generation():
    obj = {"kind": "ConfigMap", "metadata": {"generation": 3, "finalizers": ["a/b"]}}
    apply_deletion(MAP, obj, DeletionRequest(), NOW)
    apply_deletion(MAP, obj, DeletionRequest(), NOW)
    assert obj["metadata"]["generation"] == 4


def test_pods_of_a_job_stay_and_the_client_is_warned_unless_it_gives_a_policy():
    def deletion(**options: str) -> tuple[str, list[str]]:
        job = ServedKind("batch", "v1", "Job", "jobs", orphans=True)
        request = ApiRequest(job, "delete", "n", "j", "", {})
        return read_deletion_request(request, options).policy, request.warnings

    policy, (warning,) = deletion()
    assert (policy, "propagationPolicy=Background" in warning) == ("Orphan", True)
    assert deletion(propagationPolicy="Background") == ("Background", [])
