"""The rights of a node: its own objects, and what the pods that are bound to it refer to."""

from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from gangline.local.apiserver.auth.node_authorizer import (
    NodeAuthorizer,
    PodReferences,
    node_of,
    pod_references,
    prepare_node_certificates,
)
from gangline.local.apiserver.auth.pki import ClusterAuthority, prepare_certificates
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
        (access("list", "pods", field_selector="spec.nodeName!=n1"), False),
        (access("list", "pods", field_selector="("), False),
        (access("patch", "nodes/status", "n1"), True),
        (access("create", "pods/binding", "p", "ns"), False),
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


@pytest.fixture
def authority(tmp_path: Path) -> ClusterAuthority:
    return ClusterAuthority(prepare_certificates(tmp_path / "pki", ["localhost"]).authority)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_node_is_a_client_by_name_and_a_server_by_name_and_address(
    authority: ClusterAuthority, tmp_path: Path
):
    made = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    client = x509.load_pem_x509_certificate(made.client.certificate.read_bytes())
    (name,) = client.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    (group,) = client.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert (name.value, group.value) == ("system:node:n1", "system:nodes")
    server = x509.load_pem_x509_certificate(made.server.certificate.read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1"]
    assert (tmp_path / "n1").stat().st_mode & 0o777 == 0o700
    assert made.client.key.stat().st_mode & 0o777 == 0o600


def test_certificates_are_made_once(authority: ClusterAuthority, tmp_path: Path):
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    before = contents(tmp_path / "n1")
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    assert contents(tmp_path / "n1") == before


@pytest.mark.parametrize("name", ["client.crt", "client.key", "server.crt", "server.key"])
@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_damaged_file_is_replaced(
    authority: ClusterAuthority, tmp_path: Path, name: str, content: bytes
):
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    (tmp_path / "n1" / name).write_bytes(content)
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    assert (tmp_path / "n1" / name).read_bytes().startswith(b"-----BEGIN")


def test_a_key_of_another_certificate_is_replaced(authority: ClusterAuthority, tmp_path: Path):
    made = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    before = made.client.certificate.read_bytes()
    made.client.key.write_bytes(made.server.key.read_bytes())
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    assert made.client.certificate.read_bytes() != before


def test_certificates_of_another_authority_and_for_other_addresses_are_replaced(
    authority: ClusterAuthority, tmp_path: Path
):
    made = prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.1"])
    client, server = made.client.certificate.read_bytes(), made.server.certificate.read_bytes()
    prepare_node_certificates(authority, tmp_path / "n1", "n1", ["127.0.0.2"])
    assert made.client.certificate.read_bytes() == client
    assert made.server.certificate.read_bytes() != server
    other = ClusterAuthority(prepare_certificates(tmp_path / "other", ["x"]).authority)
    prepare_node_certificates(other, tmp_path / "n1", "n1", ["127.0.0.2"])
    assert made.client.certificate.read_bytes() != client
