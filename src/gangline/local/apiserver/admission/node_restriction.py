"""Writes of nodes: a kubelet changes only its own Node, Lease and pods (NodeRestriction).

The rules and messages are those of the admission plug-in of Kubernetes.
"""

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.auth.authentication import API_AUDIENCES, BoundObject
from gangline.local.apiserver.auth.node_authorizer import node_of, pod_references
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
                raise _refusal(request, "can only access node lease with the same name as the "
                               "requesting node")  # fmt: skip


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
    if old is None:
        _restrict_mirror_pod(request, node, new or {})
    elif new is None or request.subresource == "eviction":
        if old["spec"].get("nodeName") != node:
            action = "evict" if request.subresource == "eviction" else "delete"
            why = f"can only {action} pods with spec.nodeName set to itself"
            raise _refusal(request, f'node "{node}" {why}')
    elif request.subresource != "status":
        raise _refusal(request, f'node "{node}" can only update the status of pods')
    else:
        if old["spec"].get("nodeName") != node:
            why = "can only update pod status for pods with spec.nodeName set to itself"
            raise _refusal(request, f'node "{node}" {why}')
        if (old["metadata"].get("labels") or {}) != (new["metadata"].get("labels") or {}):
            raise _refusal(request, f'node "{node}" cannot update labels through pod status')
        claims = [subobject(pod, "status").get("resourceClaimStatuses") for pod in (old, new)]
        if claims[0] != claims[1]:
            # A node reads the claims that the status of its pods names.
            raise _refusal(request, f'node "{node}" cannot update resource claim statuses')


def _restrict_mirror_pod(request: ApiRequest, node: str, pod: Json) -> None:
    spec = pod.get("spec") or {}
    if MIRROR_ANNOTATION not in (pod["metadata"].get("annotations") or {}):
        raise _refusal(request, f'pod does not have "{MIRROR_ANNOTATION}" annotation, node '
                       f'"{node}" can only create mirror pods')  # fmt: skip
    if spec.get("nodeName") != node:
        raise _refusal(request, f'node "{node}" can only create pods with spec.nodeName set to '
                       "itself")  # fmt: skip
    if spec.get("serviceAccountName") not in (None, "", "default"):
        raise _refusal(request, f'node "{node}" can not create pods that reference a service '
                       "account")  # fmt: skip
    for part in (*objects_in(spec.get("containers")), *objects_in(spec.get("initContainers"))):
        origins = [source.get("valueFrom") or {} for source in objects_in(part.get("env"))]
        if any(set(source) & {"secretKeyRef", "configMapKeyRef"} for source in origins) or any(
            set(source) & {"secretRef", "configMapRef"}
            for source in objects_in(part.get("envFrom"))
        ):
            raise _refusal(request, f'node "{node}" can not create pods that reference secrets or '
                           "configmaps")  # fmt: skip
    allowed = {"name", "emptyDir", "hostPath", "downwardAPI"}
    if any(set(volume) - allowed for volume in objects_in(spec.get("volumes"))):
        raise _refusal(request, f'node "{node}" can not create pods with volumes of API objects')


def _restrict_node(request: ApiRequest, node: str, old: Json | None, new: Json | None) -> None:
    if request.name != node:
        raise _refusal(request, f'node "{node}" is not allowed to modify node "{request.name}"')
    if new is None:
        return
    before, after = (old or {}).get("metadata") or {}, new["metadata"]
    labels = {
        key
        for key in {*(before.get("labels") or {}), *(after.get("labels") or {})}
        if (before.get("labels") or {}).get(key) != (after.get("labels") or {}).get(key)
    }
    barred = ", ".join(sorted(filter(_is_restricted_label, labels)))
    if barred and old is None:
        why = f"is not allowed to set the following labels: {barred}"
        raise _refusal(request, f'node "{node}" {why}')
    if barred:
        raise _refusal(request, f'node "{node}" is not allowed to modify labels: {barred}')
    if old is None:
        return
    taints = [objects_in(subobject(each, "spec").get("taints")) for each in (old, new)]
    if taints[0] != taints[1]:
        raise _refusal(request, f'node "{node}" is not allowed to modify taints')
    if (before.get("ownerReferences") or []) != (after.get("ownerReferences") or []):
        raise _refusal(request, f'node "{node}" is not allowed to modify ownerReferences')


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
