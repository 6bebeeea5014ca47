"""The rights of a node: its own objects, and what the pods that are bound to it refer to."""

from typing import Any

import pytest

from gangline.local.apiserver.auth.node_authorizer import NodeAuthorizer, node_of
from gangline.local.apiserver.auth.node_pods import PodReferences, pod_references
from gangline.local.apiserver.auth.rules import AccessAttributes
from gangline.local.apiserver.core.request import RequestUser
from gangline.local.apiserver.storage.store import ObjectStore

SPEC: dict[str, Any] = {
    "serviceAccountName": "robot",
    "imagePullSecrets": [{"name": "pull"}],
    "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "env-from"}}]}],
    "containers": [
        {
            "name": "c",
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "env", "key": "k"}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "k"}}},
            ],
        }
    ],
    "volumes": [
        {"name": "a", "secret": {"secretName": "vol"}},
        {"name": "b", "configMap": {"name": "files"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "d", "csi": {"driver": "x", "nodePublishSecretRef": {"name": "csi"}}},
        {
            "name": "e",
            "projected": {
                "sources": [
                    {"secret": {"name": "part"}},
                    {"configMap": {"name": "part-conf"}},
                    {"serviceAccountToken": {"path": "t", "audience": "vault"}},
                ]
            },
        },
        {"name": "f", "emptyDir": {}},
    ],
}


def test_all_references_of_a_pod_are_found():
    assert pod_references({"metadata": {"name": "p"}, "spec": SPEC}) == PodReferences(
        frozenset({"kube-root-ca.crt", "conf", "files", "part-conf"}),
        frozenset({"pull", "env-from", "env", "vol", "csi", "part"}),
        frozenset({"data", "p-scratch"}),
        "robot",
        frozenset({"vault"}),
    )


@pytest.mark.parametrize(
    ("name", "groups", "node"),
    [
        ("system:node:n1", ("system:nodes", "system:authenticated"), "n1"),
        ("system:node:n1", ("system:authenticated",), None),
        ("alice", ("system:nodes",), None),
    ],
)
def test_a_node_has_its_name_and_its_group(name: str, groups: tuple[str, ...], node: str | None):
    assert node_of(RequestUser(name, groups)) == node


async def put(store: ObjectStore, topic: str, key: str, *, removed: bool = False, **obj: Any):
    fields = {"spec.nodeName": obj.get("spec", {}).get("nodeName", "")}
    await store.stage(
        store.cache(topic), key, {"metadata": {"name": "p"}, **obj}, ({}, fields), removed=removed
    )


@pytest.fixture
async def nodes(store: ObjectStore) -> NodeAuthorizer:
    await put(store, "pods.", "ns/p", spec=SPEC | {"nodeName": "n1"})
    await put(store, "pods.", "ns/q", spec={"nodeName": "n2"})
    await put(store, "persistentvolumeclaims.", "ns/data", spec={"volumeName": "pv1"})
    await put(store, "persistentvolumeclaims.", "ns/other", spec={"volumeName": "pv2"})
    return NodeAuthorizer(store)


def access(verb: str, resource: str, name: str = "", namespace: str = "", **more: str):
    plural, _, subresource = resource.partition("/")
    return AccessAttributes(verb, "", plural, subresource, namespace, name, **more)


@pytest.mark.parametrize(
    ("action", "allowed"),
    [
        (access("get", "secrets", "vol", "ns"), True),
        (access("watch", "secrets", "vol", "ns"), True),
        (access("get", "secrets", "vol", "other"), False),
        (access("get", "secrets", "foreign", "ns"), False),
        (access("list", "secrets", "", "ns"), False),
        (access("list", "secrets"), False),
        (access("update", "secrets", "vol", "ns"), False),
        (access("get", "secrets/status", "vol", "ns"), False),
        (access("get", "configmaps", "kube-root-ca.crt", "ns"), True),
        (access("get", "configmaps", "kube-root-ca.crt", "other"), False),
        (access("get", "persistentvolumeclaims", "data", "ns"), True),
        (access("get", "persistentvolumeclaims", "other", "ns"), False),
        (access("get", "persistentvolumes", "pv1"), True),
        (access("get", "persistentvolumes", "pv2"), False),
        (access("get", "persistentvolumes", ""), False),
        (access("create", "serviceaccounts/token", "robot", "ns"), True),
        (access("create", "serviceaccounts/token", "default", "ns"), False),
        (access("create", "serviceaccounts/token", "robot", "other"), False),
        (access("get", "serviceaccounts", "robot", "ns"), False),
        (access("get", "pods", "p", "ns"), True),
        (access("get", "pods", "q", "ns"), False),
        (access("list", "pods", field_selector="spec.nodeName=n1"), True),
        (access("list", "pods", field_selector="spec.nodeName=n2"), False),
        (access("list", "pods", field_selector="spec.nodeName!=n1"), False),
        (access("list", "pods", field_selector="("), False),
        (access("list", "pods"), False),
        (access("create", "pods/exec", "p", "ns"), False),
        (access("get", "nodes", "n1"), True),
        (access("get", "nodes", "n2"), False),
        (access("list", "nodes"), False),
        (access("delete", "nodes", "n1"), False),
        (access("patch", "nodes/status", "n1"), True),
        (access("create", "pods/binding", "p", "ns"), False),
        (AccessAttributes("patch", "coordination.k8s.io", "leases", "", "kube-node-lease", "n1"),
         True),
        (AccessAttributes("patch", "coordination.k8s.io", "leases", "", "kube-node-lease", "n2"),
         False),
        (AccessAttributes("get", "coordination.k8s.io", "leases", "", "kube-system", "n1"), False),
    ],
)  # fmt: skip
async def test_what_a_node_may_do(nodes: NodeAuthorizer, action: AccessAttributes, allowed: bool):
    assert nodes.allows("n1", action) is allowed


async def test_rights_begin_with_a_binding_and_end_with_the_pod(
    nodes: NodeAuthorizer, store: ObjectStore
):
    read = access("get", "secrets", "vol", "team")
    await put(store, "pods.", "team/p", spec=SPEC)
    assert not nodes.allows("n1", read)
    await put(store, "pods.", "team/p", spec=SPEC | {"nodeName": "n1"})
    assert nodes.allows("n1", read)
    await put(store, "pods.", "team/p", removed=True, spec=SPEC | {"nodeName": "n1"})
    assert not nodes.allows("n1", read)
