"""The controllers against a real API server; pods exist only as objects."""

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gangline.api.meta.resource import Resource
from gangline.api.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    ENDPOINTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.errors import NotFound
from integration.cluster.embedded import until

NS = "default"


CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def config_map(name: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "ownerReferences": list(owners), **metadata},
    }


def pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "ports": [{"name": "http", "containerPort": 8080}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [container], **spec},
    }


def workload(replicas: int) -> dict[str, Any]:
    """A Deployment or a ReplicaSet."""
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


async def owner_reference(client: ApiClient, name: str, block: bool = True) -> dict[str, Any]:
    owner = await client.get(CONFIG_MAPS, name, NS)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": name,
        "uid": owner.metadata.uid,
        "blockOwnerDeletion": block,
    }


def absent(client: ApiClient, kind: Resource[Any], name: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        try:
            await client.get(kind, name, NS if kind.namespaced else None)
        except NotFound:
            return True
        return False

    return check


async def become_ready(client: ApiClient, name: str, ip: str) -> None:
    status = {
        "phase": "Running",
        "podIP": ip,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": None}],
    }
    patch = {"status": status}
    await client.patch(PODS, name, patch, NS, kind=PatchKind.MERGE, subresource="status")


async def family(client: ApiClient) -> None:
    """A parent, a child and a grandchild."""
    await client.create(CONFIG_MAPS, config_map("parent"), NS)
    parent = await owner_reference(client, "parent")
    await client.create(CONFIG_MAPS, config_map("child", parent), NS)
    child = await owner_reference(client, "child")
    await client.create(CONFIG_MAPS, config_map("grandchild", child), NS)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_indirect_dependents_are_deleted_with_their_owner(
    controllers: ApiClient, propagation: str
) -> None:
    await family(controllers)
    await controllers.delete(CONFIG_MAPS, "parent", NS, propagation=propagation)
    for name in ("parent", "child", "grandchild"):
        await until(absent(controllers, CONFIG_MAPS, name))


async def test_namespace_is_emptied_before_its_deletion(controllers: ApiClient) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "room"}}
    await controllers.create(NAMESPACES, body)

    async def furnished() -> bool:
        accounts = (await controllers.list(SERVICE_ACCOUNTS, "room")).items
        return [account.metadata.name for account in accounts] == ["default"]

    await until(furnished)
    await controllers.create(CONFIG_MAPS, config_map("x"), "room")
    saving = pod("p")
    saving["metadata"]["finalizers"] = ["example.com/saving"]
    await controllers.create(PODS, saving, "room")
    await controllers.delete(NAMESPACES, "room")

    async def waits_for_the_pod() -> bool:
        status = (await controllers.get(NAMESPACES, "room")).status
        said = {condition.type: condition.message for condition in status.conditions}
        return said.get("NamespaceFinalizersRemaining", "").endswith(
            "finalizers remaining: example.com/saving in 1 resource instances"
        ) and said["NamespaceContentRemaining"].endswith(": pods. has 1 resource instances")

    await until(waits_for_the_pod)
    await controllers.get(CONFIG_MAPS, "x", "room")  # pods may still read it
    await controllers.patch(PODS, "p", {"metadata": {"finalizers": None}}, "room")
    await until(absent(controllers, NAMESPACES, "room"))


async def test_a_service_that_outlives_its_slices_in_an_ending_namespace_gets_no_others(
    controllers: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    ports = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    held = {"name": "held", "finalizers": ["example.com/hold"]}
    await controllers.create(NAMESPACES, {"metadata": {"name": "room"}})
    await controllers.create(SERVICES, {"metadata": held, "spec": ports}, "room")

    async def has_slice(namespace: str, name: str) -> bool:
        slices = (await controllers.list(ENDPOINT_SLICES, namespace)).items
        return name in [slice_.metadata.name for slice_ in slices]

    async def is_empty() -> bool:
        return not await has_slice("room", "held-0")

    await until(lambda: has_slice("room", "held-0"))
    await controllers.delete(NAMESPACES, "room")
    await until(is_empty)
    await controllers.create(SERVICES, {"metadata": {"name": "next"}, "spec": ports}, NS)
    await until(lambda: has_slice(NS, "next-0"))
    assert "endpoint" not in caplog.text
    await controllers.patch(SERVICES, "held", {"metadata": {"finalizers": None}}, "room")
    await until(absent(controllers, NAMESPACES, "room"))


async def test_a_deployment_keeps_its_size_and_passes_on_its_end(controllers: ApiClient) -> None:
    await controllers.create(DEPLOYMENTS, workload(3), NS)

    async def size(wanted: int) -> bool:
        pods = (await controllers.list(PODS, NS, labels="app=web")).items
        return len([p for p in pods if p.metadata.deletion_timestamp is None]) == wanted

    await until(lambda: size(3))
    for number, found in enumerate((await controllers.list(PODS, NS)).items):
        await become_ready(controllers, found.metadata.name, f"10.1.0.{number + 2}")

    async def available() -> bool:
        return (await controllers.get(DEPLOYMENTS, "web", NS)).status.available_replicas == 3

    await until(available)
    await controllers.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 1}}, NS)
    await until(lambda: size(1))
    await controllers.delete(DEPLOYMENTS, "web", NS, propagation="Background")
    await until(lambda: size(0))
    assert (await controllers.list(REPLICA_SETS, NS)).items == []


async def test_relabelled_pod_is_released_and_replaced(controllers: ApiClient) -> None:
    await controllers.create(REPLICA_SETS, workload(1), NS)

    async def one() -> str:
        pods = (await controllers.list(PODS, NS, labels="app=web")).items
        return pods[0].metadata.name if len(pods) == 1 else ""

    first = await until(one)
    await controllers.patch(PODS, first, {"metadata": {"labels": {"app": "debug"}}}, NS)
    assert await until(one) != first
    released = await controllers.get(PODS, first, NS)
    assert released.metadata.owner_references == []


async def test_endpoints_follow_pods(controllers: ApiClient) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]},
    }
    await controllers.create(SERVICES, service, NS)
    await controllers.create(PODS, pod("p", {"app": "web"}), NS)
    await become_ready(controllers, "p", "10.1.0.2")

    async def addresses() -> list[tuple[str, int]]:
        try:
            found = await controllers.get(ENDPOINTS, "web", NS)
        except NotFound:
            return []
        return [
            (address.ip, port.port)
            for subset in found.subsets
            for address in subset.addresses
            for port in subset.ports
        ]

    async def listed() -> bool:
        return await addresses() == [("10.1.0.2", 8080)]

    async def empty() -> bool:
        return await addresses() == []

    await until(listed)
    await controllers.delete(PODS, "p", NS, grace_seconds=0)
    await until(empty)
    await controllers.delete(SERVICES, "web", NS)
    await until(absent(controllers, ENDPOINTS, "web"))


async def test_claim_gets_a_folder_that_is_deleted_with_it(
    controllers: ApiClient, tmp_path: Path
) -> None:
    await controllers.create(PERSISTENT_VOLUME_CLAIMS, CLAIM, NS)

    async def bound() -> str:
        found = await controllers.get(PERSISTENT_VOLUME_CLAIMS, "data", NS)
        return found.spec.volume_name if found.status.phase == "Bound" else ""

    volume = await until(bound)
    folder = tmp_path / "volumes" / volume
    assert folder.is_dir()
    await controllers.delete(PERSISTENT_VOLUME_CLAIMS, "data", NS)
    await until(absent(controllers, PERSISTENT_VOLUMES, volume))
    assert not folder.exists()


async def make_node(client: ApiClient, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await client.create(NODES, body)
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(NODES, name, {"status": status}, subresource="status")
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"},
    }
    await client.create(LEASES, lease, "kube-node-lease")


async def test_a_taint_without_a_time_evicts_when_it_is_no_longer_tolerated(
    controllers: ApiClient,
) -> None:
    """As ``kubectl taint`` adds it. The lease keeps the node from falling silent."""
    await make_node(controllers, "n2")
    tolerated = [{"key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]
    await controllers.create(PODS, pod("leaves", nodeName="n2", tolerations=tolerated), NS)
    taint = {"spec": {"taints": [{"key": "x", "value": "1", "effect": "NoExecute"}]}}
    await controllers.patch(NODES, "n2", taint)

    async def evicted() -> bool:
        found = await controllers.get(PODS, "leaves", NS)
        marks = [c.reason for c in found.status.conditions if c.type == "DisruptionTarget"]
        return bool(found.metadata.deletion_timestamp) and marks == ["DeletionByTaintManager"]

    await until(evicted)
    await controllers.delete(NODES, "n2")


async def test_a_budget_counts_the_pods_that_are_ready(controllers: ApiClient) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    await controllers.create(POD_DISRUPTION_BUDGETS, budget, NS)
    for name in ("p1", "p2"):
        await controllers.create(PODS, pod(name, {"app": "web"}), NS)
        await become_ready(controllers, name, "10.1.0.2")

    async def allows_one() -> bool:
        found = await controllers.get(POD_DISRUPTION_BUDGETS, "b", NS)
        return found.status.disruptions_allowed == 1

    await until(allows_one)
    stored = await controllers.request_json("GET", POD_DISRUPTION_BUDGETS.path(NS, "b"))
    assert [condition["message"] for condition in stored["status"]["conditions"]] == [""]


async def test_the_authority_of_a_namespace_is_restored(controllers: ApiClient) -> None:
    name = "kube-root-ca.crt"

    async def is_there() -> bool:
        bundles = (await controllers.list(CONFIG_MAPS, NS, fields=f"metadata.name={name}")).items
        return [bundle.data["ca.crt"] for bundle in bundles] == [authority]

    authority = (controllers.config.certificate_authority or b"").decode()
    await until(is_there)
    await controllers.patch(CONFIG_MAPS, name, {"data": {"ca.crt": "wrong"}}, NS)
    await until(is_there)
    await controllers.delete(CONFIG_MAPS, name, NS)
    await until(is_there)


async def test_a_token_secret_is_filled_and_ends_with_its_account(controllers: ApiClient) -> None:
    await controllers.create(SERVICE_ACCOUNTS, {"metadata": {"name": "robot"}}, NS)
    annotations = {"kubernetes.io/service-account.name": "robot"}
    secret = {
        "metadata": {"name": "robot-token", "annotations": annotations},
        "type": "kubernetes.io/service-account-token",
    }
    await controllers.create(SECRETS, secret, NS)

    async def is_filled() -> bool:
        data = (await controllers.get(SECRETS, "robot-token", NS)).data
        return data.keys() == {"ca.crt", "namespace", "token"}

    await until(is_filled)
    filled = await controllers.get(SECRETS, "robot-token", NS)
    token = base64.b64decode(filled.data["token"]).decode()
    review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    reviewed = await controllers.request_json(
        "POST", path, body={**review, "spec": {"token": token}}
    )
    assert reviewed["status"]["user"]["username"] == "system:serviceaccount:default:robot"
    await controllers.delete(SERVICE_ACCOUNTS, "robot", NS)
    await until(absent(controllers, SECRETS, "robot-token"))


async def test_an_ephemeral_volume_gets_a_claim_that_the_pod_owns(controllers: ApiClient) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}
    made = await controllers.create(PODS, pod("user", volumes=[volume]), NS)

    async def is_bound() -> bool:
        claims = (await controllers.list(PERSISTENT_VOLUME_CLAIMS, NS)).items
        return any(claim.status.phase == "Bound" for claim in claims)

    await until(is_bound)
    claim = await controllers.get(PERSISTENT_VOLUME_CLAIMS, "user-scratch", NS)
    assert claim.metadata.controller is not None
    assert claim.metadata.controller.uid == made.metadata.uid
    assert claim.metadata.labels == {"a": "b"}
    await controllers.delete(PODS, "user", NS, grace_seconds=0)
    await until(absent(controllers, PERSISTENT_VOLUME_CLAIMS, "user-scratch"))
