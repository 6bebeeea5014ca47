"""The Node authorizer: a kubelet reads only what its own pods need. Certificates of nodes.

The rules are those of Kubernetes. Writes of nodes, leases and pods are allowed here by kind, and
limited to the node's own objects by ``admission.node_restriction``. The pods of each node follow
the committed writes; the objects that they refer to are read when they are needed.

Each node has two certificates. As a client it is ``system:node:NAME`` in the group
``system:nodes``; as a server it has its name and addresses. A certificate that is missing, damaged,
outdated or of another authority is issued again, so its files need not survive a power failure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.auth.pki import (
    CLIENT_USAGE,
    RENEW_BEFORE_EXPIRY,
    ClusterAuthority,
    KeyPairFiles,
    make_name,
    server_options,
)
from gangline.local.apiserver.auth.rules import AccessAttributes, selected_value
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import RequestUser
from gangline.local.apiserver.storage.store import ObjectStore
from gangline.local.apiserver.storage.watch_cache import DELETED, CacheEvent, ObjectRevision

AUTHORITY_CONFIG_MAP = "kube-root-ca.crt"
"""The certificates of the API server: every pod gets them with the token of its account."""


class PodReferences(NamedTuple):
    """The names of objects in its namespace that a pod refers to."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    claims: frozenset[str] = frozenset()
    account: str = ""
    audiences: frozenset[str] = frozenset()
    """The audiences of the tokens in its projected volumes."""
    device_claims: frozenset[str] = frozenset()


class NodePods:
    """The pods of each node by their keys."""

    def __init__(self, store: ObjectStore) -> None:
        self._records = store.cache("pods.").records
        self._by_node: dict[str, set[str]] = {}
        self._references: dict[str, tuple[ObjectRevision, PodReferences]] = {}
        for record in self._records.values():
            self._add(record)
        store.add_listener("pods.", self._on_change)

    def is_bound(self, node: str, key: str) -> bool:
        return key in self._by_node.get(node, ())

    def references(self, node: str, namespace: str = "") -> Iterator[tuple[str, PodReferences]]:
        """Yield namespace and references of a node's pods, optionally of one namespace only."""
        for key in self._by_node.get(node, ()):
            of, _, _ = key.partition("/")
            if namespace in ("", of):
                yield of, self._references_of(self._records[key])

    def _references_of(self, record: ObjectRevision) -> PodReferences:
        cached = self._references.get(record.key)
        if cached is None or cached[0] is not record:
            cached = record, pod_references(read_json(record.body))
            self._references[record.key] = cached
        return cached[1]

    def _add(self, record: ObjectRevision) -> None:
        if node := record.fields.get("spec.nodeName"):
            self._by_node.setdefault(node, set()).add(record.key)

    def _on_change(self, event: CacheEvent) -> None:
        key, before = event.record.key, event.before
        if event.type != DELETED and before is not None:
            # A binding is final, so that a bound pod needs nothing more.
            if not before.fields.get("spec.nodeName"):
                self._add(event.record)
            return
        self._references.pop(key, None)
        if before is not None and (node := before.fields.get("spec.nodeName")):
            pods = self._by_node.get(node, set())
            pods.discard(key)
            if not pods:
                self._by_node.pop(node, None)
        if event.type != DELETED:
            self._add(event.record)


def pod_references(pod: Json) -> PodReferences:
    """Return what a pod refers to."""
    spec = pod.get("spec") or {}
    maps: set[Any] = {AUTHORITY_CONFIG_MAP}
    secrets: set[Any] = {secret.get("name") for secret in objects_in(spec.get("imagePullSecrets"))}
    claims: set[Any] = set()
    audiences: set[Any] = set()
    for name in ("initContainers", "containers", "ephemeralContainers"):
        for container in objects_in(spec.get(name)):
            for source in objects_in(container.get("envFrom")):
                maps.add(_name(source, "configMapRef"))
                secrets.add(_name(source, "secretRef"))
            for variable in objects_in(container.get("env")):
                origin = variable.get("valueFrom") or {}
                maps.add(_name(origin, "configMapKeyRef"))
                secrets.add(_name(origin, "secretKeyRef"))
    for volume in objects_in(spec.get("volumes")):
        maps.add(_name(volume, "configMap"))
        secrets.add(_name(volume, "secret", "secretName"))
        claims.add(_name(volume, "persistentVolumeClaim", "claimName"))
        if volume.get("ephemeral") is not None:
            claims.add(f"{pod['metadata']['name']}-{volume['name']}")
        secrets.update(_driver_secrets(volume))
        for part in objects_in(subobject(volume, "projected").get("sources")):
            maps.add(_name(part, "configMap"))
            secrets.add(_name(part, "secret"))
            audiences.add((part.get("serviceAccountToken") or {}).get("audience"))
    device_claims = {
        claim.get("resourceClaimName") for claim in objects_in(spec.get("resourceClaims"))
    }
    created = objects_in(subobject(pod, "status").get("resourceClaimStatuses"))
    device_claims |= {status.get("resourceClaimName") for status in created}
    return PodReferences(
        frozenset(filter(None, maps)),
        frozenset(filter(None, secrets)),
        frozenset(filter(None, claims)),
        spec.get("serviceAccountName") or "default",
        frozenset(filter(None, audiences)),
        frozenset(filter(None, device_claims)),
    )


def _driver_secrets(volume: Json) -> Iterator[str | None]:
    """Yield the Secrets of volume types such as CSI, which name them in a common form."""
    for source in volume.values():
        if isinstance(source, dict):
            yield _name(source, "secretRef")
            yield _name(source, "nodePublishSecretRef")


def _name(obj: Json, reference: str, field: str = "name") -> str | None:
    part = obj.get(reference)
    name = part.get(field) if isinstance(part, dict) else None
    return name if isinstance(name, str) else None


NODE_PREFIX, NODE_GROUP = "system:node:", "system:nodes"
"""User name (with the node's name) and group of a kubelet."""


@dataclass(frozen=True, slots=True)
class NodeCertificates:
    """The certificates of one node."""

    client: KeyPairFiles
    """For requests to the API server."""
    server: KeyPairFiles
    """For the kubelet's own server."""


def prepare_node_certificates(
    authority: ClusterAuthority, folder: Path, node: str, addresses: Sequence[str]
) -> NodeCertificates:
    """Create missing or outdated certificates of a node in ``folder`` and return all paths.

    Raises:
        ValueError: a file of the authority is damaged.
        OSError: the folder cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    server = server_options([node, *addresses])
    for name, options in (("client", [CLIENT_USAGE]), ("server", server)):
        pair = KeyPairFiles.in_folder(folder, name)
        if not _is_usable(pair, authority, options):
            subject = make_name(f"{NODE_PREFIX}{node}", NODE_GROUP)
            authority.issue(pair, subject, options, durably=False)
    return NodeCertificates(
        KeyPairFiles.in_folder(folder, "client"), KeyPairFiles.in_folder(folder, "server")
    )


def _is_usable(
    pair: KeyPairFiles, authority: ClusterAuthority, options: Sequence[x509.ExtensionType]
) -> bool:
    if not pair.exists:
        return False
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
        present = [certificate.extensions.get_extension_for_class(type(e)).value for e in options]
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return (
        certificate.public_key() == key.public_key()
        and certificate.not_valid_after_utc > datetime.now(UTC) + RENEW_BEFORE_EXPIRY
        and present == list(options)
        and authority.has_issued(certificate)
    )


LEASE_NAMESPACE = "kube-node-lease"
READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch")
STATIC_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "services"): READ,
    ("", "events"): WRITE,
    ("events.k8s.io", "events"): WRITE,
    ("", "nodes"): WRITE,
    ("", "nodes/status"): ("update", "patch"),
    ("", "pods"): ("create", "delete"),
    ("", "pods/status"): ("update", "patch"),
    ("", "pods/eviction"): ("create",),
    ("authentication.k8s.io", "tokenreviews"): ("create",),
    ("authorization.k8s.io", "subjectaccessreviews"): ("create",),
    ("authorization.k8s.io", "localsubjectaccessreviews"): ("create",),
}
"""Verbs by group and resource that do not depend on the node's pods."""


def node_of(user: RequestUser) -> str | None:
    """Return the name of the node that a user is; None for other users."""
    if NODE_GROUP in user.groups and user.name.startswith(NODE_PREFIX):
        return user.name.removeprefix(NODE_PREFIX)
    return None


class NodeAuthorizer:
    """Decides what a node may do."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pods = NodePods(store)

    def allows(self, node: str, access: AccessAttributes) -> bool:
        verb, resource = access.verb, access.full_resource
        if verb in STATIC_RULES.get((access.group, resource), ()):
            return True
        match access.group, resource:
            case "", "nodes":
                return verb in READ and access.name == node
            case "", "pods":
                return verb in READ and self._may_read_pods(node, access)
            case "", "configmaps" | "secrets" | "persistentvolumeclaims":
                return verb in READ and self._is_referenced(node, access)
            case "resource.k8s.io", "resourceclaims":
                return verb in READ and self._is_referenced(node, access)
            case "", "persistentvolumes":
                return verb in READ and self._uses_volume(node, access.name)
            case "", "serviceaccounts/token":
                return verb == "create" and any(
                    references.account == access.name
                    for _, references in self._pods.references(node, access.namespace)
                )
            case "coordination.k8s.io", "leases":
                return _may_use_lease(node, access)
        return False

    def _may_read_pods(self, node: str, access: AccessAttributes) -> bool:
        name = access.name
        if name and access.namespace:
            return self._pods.is_bound(node, f"{access.namespace}/{name}")
        return (
            access.verb != "get" and selected_value(access.field_selector, "spec.nodeName") == node
        )

    def _is_referenced(self, node: str, access: AccessAttributes) -> bool:
        name, namespace = access.name, access.namespace
        if not name or not namespace:
            return False
        for _, references in self._pods.references(node, namespace):
            names = {
                "configmaps": references.config_maps,
                "secrets": references.secrets,
                "persistentvolumeclaims": references.claims,
                "resourceclaims": references.device_claims,
            }
            if name in names[access.resource]:
                return True
        return False

    def _uses_volume(self, node: str, name: str) -> bool:
        for namespace, references in self._pods.references(node):
            for claim in references.claims:
                used = self._store.committed("persistentvolumeclaims.", f"{namespace}/{claim}")
                if name and subobject(used, "spec").get("volumeName") == name:
                    return True
        return False


def _may_use_lease(node: str, access: AccessAttributes) -> bool:
    if access.namespace != LEASE_NAMESPACE:
        return False
    # The name of a new object is in its body: admission compares it.
    return access.verb == "create" or (
        access.verb in ("get", "update", "patch", "delete") and access.name == node
    )
