"""Writes of nodes: only their own objects, and of these not every field."""

from typing import Any

import pytest

from gangline.local.apiserver.admission.node_restriction import restrict_node_write
from gangline.local.apiserver.core.errors import StatusError
from gangline.local.apiserver.core.registry import ServedKind
from gangline.local.apiserver.core.request import ApiRequest, RequestUser

PODS = ServedKind("", "v1", "Pod", "pods")
NODES = ServedKind("", "v1", "Node", "nodes", namespaced=False)
N1 = RequestUser("system:node:n1", ("system:nodes", "system:authenticated"))


def request(kind: ServedKind, name: str, subresource: str = "") -> ApiRequest:
    namespace = "ns" if kind.namespaced else None
    return ApiRequest(kind, "update", namespace, name, subresource, {}, N1)


def node(labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "labels": labels or {}}, **more}


def pod(name: str = "p", on: str = "n1", mirror: bool = True, **spec: Any) -> dict[str, Any]:
    annotations = {"kubernetes.io/config.mirror": "x"} if mirror else {}
    meta = {"name": name, "annotations": annotations}
    return {"metadata": meta, "spec": {"nodeName": on, **spec}}


@pytest.mark.parametrize(
    "label",
    [
        "node-restriction.kubernetes.io/tenant",
        "team.node-restriction.kubernetes.io/tenant",
        "node-role.kubernetes.io/control-plane",
        "kubernetes.io/anything",
        "x.k8s.io/y",
    ],
)
def test_labels_of_kubernetes_domains_are_refused(label: str):
    with pytest.raises(StatusError, match="not allowed to set the following labels") as refused:
        restrict_node_write(request(NODES, "n1"), None, node({label: "x"}))
    assert refused.value.status.code == 403
    with pytest.raises(StatusError, match=f"modify labels: {label}"):
        restrict_node_write(request(NODES, "n1"), node(), node({label: "x"}))
    with pytest.raises(StatusError, match=f"modify labels: {label}"):
        restrict_node_write(request(NODES, "n1"), node({label: "x"}), node())
    restrict_node_write(request(NODES, "n1"), node({label: "x"}), node({label: "x"}))


@pytest.mark.parametrize(
    "label",
    [
        "gangline.dev/virtual",
        "rack",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "kubelet.kubernetes.io/x",
        "x.node.kubernetes.io/y",
        "notkubernetes.io/x",
    ],
)
def test_other_labels_are_the_nodes_own(label: str):
    restrict_node_write(request(NODES, "n1"), None, node({label: "x"}))
    restrict_node_write(request(NODES, "n1"), node(), node({label: "x"}))


def test_taints_are_set_at_registration_only():
    tainted = node(spec={"taints": [{"key": "k", "effect": "NoSchedule"}]})
    restrict_node_write(request(NODES, "n1"), None, tainted)
    for old, new in ((node(), tainted), (tainted, node())):
        with pytest.raises(StatusError, match="modify taints"):
            restrict_node_write(request(NODES, "n1"), old, new)


def test_only_mirror_pods_without_references_are_created():
    restrict_node_write(request(PODS, "p"), None, pod())
    secret = [{"name": "v", "secret": {"secretName": "s"}}]
    env = [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}]
    for made, why in (
        (pod(mirror=False), "only create mirror pods"),
        (pod(on="n2"), "set to itself"),
        (pod(serviceAccountName="admin"), "service account"),
        (pod(volumes=secret), "volumes of API objects"),
        (pod(containers=env), "secrets or configmaps"),
    ):
        with pytest.raises(StatusError, match=why):
            restrict_node_write(request(PODS, "p"), None, made)


def test_of_pods_only_the_status_is_updated():
    restrict_node_write(request(PODS, "p", "status"), pod(), pod())
    with pytest.raises(StatusError, match="only update the status"):
        restrict_node_write(request(PODS, "p"), pod(), pod())
    with pytest.raises(StatusError, match="set to itself"):
        restrict_node_write(request(PODS, "p", "status"), pod(on="n2"), pod())


def test_other_users_are_not_restricted():
    asked = request(NODES, "n2")
    asked.user = RequestUser("admin", ("system:masters",))
    restrict_node_write(asked, node(), node({"kubernetes.io/x": "y"}))
