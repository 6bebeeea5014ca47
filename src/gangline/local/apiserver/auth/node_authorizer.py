"""Authorization of nodes: a kubelet reads only what its own pods need (the Node authorizer).

The rules are those of Kubernetes. Writes of nodes, leases and pods are allowed here by kind, and
limited to the node's own objects by ``admission.node_restriction``.
"""

from gangline.local.apiserver.auth.node_certificates import NODE_GROUP, NODE_PREFIX
from gangline.local.apiserver.auth.node_pods import NodePods
from gangline.local.apiserver.auth.rules import AccessAttributes, selected_value
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.request import RequestUser
from gangline.local.apiserver.storage.store import ObjectStore

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
            case "", "persistentvolumes":
                return verb in READ and self._uses_volume(node, access.name)
            case "", "serviceaccounts/token":
                return verb == "create" and any(
                    found.account == access.name
                    for _, found in self._pods.references(node, access.namespace)
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
        for _, found in self._pods.references(node, namespace):
            names = {
                "configmaps": found.config_maps,
                "secrets": found.secrets,
                "persistentvolumeclaims": found.claims,
            }
            if name in names[access.resource]:
                return True
        return False

    def _uses_volume(self, node: str, name: str) -> bool:
        claims = self._store.cache("persistentvolumeclaims.").records
        for namespace, found in self._pods.references(node):
            for claim in found.claims:
                record = claims.get(f"{namespace}/{claim}")
                spec = read_json(record.body).get("spec") if record else None
                if name and spec and spec.get("volumeName") == name:
                    return True
        return False


def _may_use_lease(node: str, access: AccessAttributes) -> bool:
    if access.namespace != LEASE_NAMESPACE:
        return False
    # The name of a new object is in its body: admission compares it.
    return access.verb == "create" or (
        access.verb in ("get", "update", "patch", "delete") and access.name == node
    )
