"""The effect of a deletion request by kind, finalizers, policy and grace period."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gangline.local.apiserver.registry import Kind
from gangline.local.apiserver.removal import Removal, remove

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = Kind("", "v1", "Pod", "pods")
MAP = Kind("", "v1", "ConfigMap", "configmaps")


def a_pod(phase: str = "Running", node: str = "n", **meta: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 30}
    if node:
        spec["nodeName"] = node
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pod", "removal", "removed", "grace"),
    [
        pytest.param(a_pod(), Removal(), False, 30, id="a running pod gets its own grace"),
        pytest.param(a_pod(), Removal(5), False, 5, id="or what the client says"),
        pytest.param(a_pod(), Removal(0), True, 0, id="zero removes it immediately"),
        pytest.param(
            a_pod(node=""), Removal(), True, 0, id="a pod without a node has no grace period"
        ),
        pytest.param(a_pod("Failed"), Removal(), True, 0, id="nor does one that has ended"),
        pytest.param(a_pod(finalizers=["a/b"]), Removal(0), False, 0, id="finalizers hold it"),
    ],
)
def test_grace_of_pods(pod: dict[str, Any], removal: Removal, removed: bool, grace: int):
    assert remove(POD, pod, removal, NOW) is removed
    assert pod["metadata"]["deletionGracePeriodSeconds"] == grace


def test_a_second_deletion_only_shortens_the_grace():
    pod = a_pod()
    remove(POD, pod, Removal(30), NOW)
    assert pod["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    remove(POD, pod, Removal(60), NOW)
    assert pod["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:30Z"
    remove(POD, pod, Removal(10), NOW)
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
    assert remove(MAP, obj, Removal(policy=policy), NOW) is removed
    assert obj["metadata"].get("finalizers") == after


def test_deletion_increments_generation():
    obj = {"kind": "ConfigMap", "metadata": {"generation": 3, "finalizers": ["a/b"]}}
    remove(MAP, obj, Removal(), NOW)
    remove(MAP, obj, Removal(), NOW)
    assert obj["metadata"]["generation"] == 4
