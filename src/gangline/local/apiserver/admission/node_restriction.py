"""Writes of nodes: a kubelet changes only its own Node, Lease and pods (NodeRestriction).

The rules and messages are those of the admission plug-in of Kubernetes.
"""

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.auth.authentication import API_AUDIENCES, BoundObject
from gangline.local.apiserver.auth.node_authorizer import (
    AUTHORITY_CONFIG_MAP,
    node_of,
    pod_references,
)
from gangline.local.apiserver.core.errors import StatusError, forbidden_object
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.core.request import ApiRequest

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
LEASE_NAMESPACE = "kube-node-lease"
KUBERNETES_DOMAINS = ("kubernetes.io", "k8s.io")
RESTRICTED_DOMAIN = "node-restriction.kubernetes.io"
KUBELET_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
KUBELET_LABELS = frozenset({
    "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
})  # fmt: skip
"""Labels of Kubernetes' domains that a kubelet sets itself."""


def restrict_node_write(request: ApiRequest, old: Json | None, new: Json | None) -> None:
    """Refuse a write of a node to anything but its own objects; other users are not restricted.

    Args:
        request: the write.
        old: the object before it; None for a creation.
        new: the object after it; None for a deletion.

    Raises:
        StatusError: 403.
    """
    node = node_of(request.user)
    if node is None:
        return
    match request.kind.group, request.kind.plural:
        case "", "pods":
            _restrict_pod(request, node, old, new)
        case "", "nodes":
            _restrict_node(request, node, old, new)
        case "coordination.k8s.io", "leases":
            if request.namespace != LEASE_NAMESPACE:
                why = f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
                raise _refusal(request, why)
            if request.name != node:
                why = "can only access node lease with the same name as the requesting node"
                raise _refusal(request, why)


def restrict_token_request(
    request: ApiRequest, audiences: list[str], reference: Json, bound: BoundObject | None
) -> None:
    """Refuse a token of a node that is not bound to one of its pods, or not used by this pod.

    Args:
        request: the token request.
        audiences: the audiences of the token.
        reference: the reference to ``bound`` in the request.
        bound: the object that the token will be bound to.

    Raises:
        StatusError: 403.
    """
    node = node_of(request.user)
    if node is None:
        return
    if bound is None or bound.kind != "Pod":
        raise _refusal(request, "node requested token not bound to a pod")
    if not reference.get("uid"):
        raise _refusal(request, "node requested token with a pod binding without a uid")
    if bound.node is None or bound.node.name != node:
        raise _refusal(request, "node requested token bound to a pod scheduled on a different node")
    allowed = {*API_AUDIENCES, *pod_references(bound.content or {}).audiences}
    for audience in audiences:
        if audience not in allowed:
            why = f'audience "{audience}" not found in pod spec volume'
            raise _refusal(request, f"{why}, {request.user.name} is not authorized to request "
                           "tokens for this audience")  # fmt: skip


def _restrict_pod(request: ApiRequest, node: str, old: Json | None, new: Json | None) -> None:
    def refuse(why: str) -> StatusError:
        return _refusal(request, f'node "{node}" {why}')

    evicts = request.subresource == "eviction"
    if old is None:
        _restrict_mirror_pod(request, node, new or {})
        return
    is_own = old["spec"].get("nodeName") == node
    if new is None or evicts:
        if not is_own:
            action = "evict" if evicts else "delete"
            raise refuse(f"can only {action} pods with spec.nodeName set to itself")
        return
    if request.subresource != "status":
        raise refuse("can only update the status of pods")
    if not is_own:
        raise refuse("can only update pod status for pods with spec.nodeName set to itself")
    if (old["metadata"].get("labels") or {}) != (new["metadata"].get("labels") or {}):
        raise refuse("cannot update labels through pod status")
    claims = [subobject(pod, "status").get("resourceClaimStatuses") for pod in (old, new)]
    if claims[0] != claims[1]:
        # A node reads the claims that the status of its pods names.
        raise refuse("cannot update resource claim statuses")


def _restrict_mirror_pod(request: ApiRequest, node: str, pod: Json) -> None:
    spec = subobject(pod, "spec")
    volumes = objects_in(spec.get("volumes"))
    allowed = {"name", "emptyDir", "hostPath", "downwardAPI"}
    named = pod_references({**pod, "spec": {**spec, "volumes": []}})
    why = ""
    if MIRROR_ANNOTATION not in subobject(pod, "metadata", "annotations"):
        why = f'pod does not have "{MIRROR_ANNOTATION}" annotation, node "{node}" can only create '
        raise _refusal(request, f"{why}mirror pods")
    if spec.get("nodeName") != node:
        why = "can only create pods with spec.nodeName set to itself"
    elif spec.get("serviceAccountName") not in (None, "", "default"):
        why = "can not create pods that reference a service account"
    elif named.secrets or named.config_maps - {AUTHORITY_CONFIG_MAP}:
        why = "can not create pods that reference secrets or configmaps"
    elif any(set(volume) - allowed for volume in volumes):
        why = "can not create pods with volumes of API objects"
    if why:
        raise _refusal(request, f'node "{node}" {why}')


def _restrict_node(request: ApiRequest, node: str, old: Json | None, new: Json | None) -> None:
    def refuse(why: str) -> StatusError:
        return _refusal(request, f'node "{node}" is not allowed to {why}')

    if request.name != node:
        raise refuse(f'modify node "{request.name}"')
    if new is None:
        return
    before, after = (subobject(obj, "metadata", "labels") for obj in (old, new))
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    if barred := ", ".join(sorted(filter(_is_restricted_label, changed))):
        raise refuse(f"{'modify' if old else 'set the following'} labels: {barred}")
    if old is None:
        return
    for part, field in (("spec", "taints"), ("metadata", "ownerReferences")):
        parts = [objects_in(subobject(obj, part).get(field)) for obj in (old, new)]
        if parts[0] != parts[1]:
            raise refuse(f"modify {field}")


def _is_restricted_label(label: str) -> bool:
    domain, _, _ = label.rpartition("/")
    if _is_in(domain, (RESTRICTED_DOMAIN,)):
        return True
    return (
        _is_in(domain, KUBERNETES_DOMAINS)
        and label not in KUBELET_LABELS
        and not _is_in(domain, KUBELET_DOMAINS)
    )


def _is_in(domain: str, domains: tuple[str, ...]) -> bool:
    return any(domain == allowed or domain.endswith(f".{allowed}") for allowed in domains)


def _refusal(request: ApiRequest, why: str) -> StatusError:
    return forbidden_object(request.kind.plural, request.kind.group, request.name, why)
