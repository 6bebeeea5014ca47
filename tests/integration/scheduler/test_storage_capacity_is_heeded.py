"""Storage capacity on a real API server that serves only the beta version."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gangline.api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    STORAGE_CLASSES,
)
from gangline.kube.client.client import ApiClient
from gangline.local import custom_resources
from gangline.scheduler.loop import run
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.wire import BETA_STORAGE_CAPACITIES, CSI_DRIVERS
from integration.cluster.embedded import until

DRIVER = "disk.example.com"
ZONE = "topology.kubernetes.io/zone"


async def define(client: ApiClient, kind: str, version: str, scope: str) -> None:
    """Let the server know a kind of Kubernetes' storage that it does not have itself."""
    plural = "csistoragecapacities" if kind == "CSIStorageCapacity" else f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {
        "group": "storage.k8s.io",
        "scope": scope,
        "names": {"kind": kind, "plural": plural},
        "versions": [
            {
                "name": version,
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": schema},
            }
        ],
    }
    body = {
        "metadata": {
            "name": f"{plural}.storage.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://example.com"},
        },
        "spec": spec,
    }
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)

    async def known() -> bool:
        found = await client.request_json("GET", f"/apis/storage.k8s.io/{version}")
        return any(each["name"] == plural for each in found["resources"])

    await until(known)


@pytest.fixture
async def cluster(client: ApiClient) -> AsyncIterator[ApiClient]:
    """Nodes in two zones, a driver that publishes what is left, and a scheduler."""
    await custom_resources.install_definitions(client)
    await define(client, "CSIDriver", "v1", "Cluster")
    await define(client, "CSIStorageCapacity", "v1beta1", "Namespaced")
    for name in ("a", "b"):
        await client.create(NODES, {"metadata": {"name": name, "labels": {ZONE: name}}})
        has = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
        await client.patch(NODES, name, {"status": status}, subresource="status")
    body = {"provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, {"metadata": {"name": "fast"}, **body})
    await client.create(
        CSI_DRIVERS, {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True}}
    )
    stop = asyncio.Event()
    task = asyncio.create_task(run(client, SchedulerSettings(), stop))
    yield client
    stop.set()
    await task


async def publish(client: ApiClient, name: str, zone: str, left: str) -> None:
    body = {
        "metadata": {"name": name},
        "storageClassName": "fast",
        "capacity": left,
        "nodeTopology": {"matchLabels": {ZONE: zone}},
    }
    await client.create(BETA_STORAGE_CAPACITIES, body, "default")


async def test_volume_is_requested_once_there_is_capacity(cluster: ApiClient) -> None:
    await publish(cluster, "zone-a", "a", "1Gi")
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "5Gi"}},
    }
    await cluster.create(
        PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "data"}, "spec": spec}, "default"
    )
    pod = {
        "schedulerName": "gangline",
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    await cluster.create(PODS, {"metadata": {"name": "p"}, "spec": pod}, "default")

    async def told() -> bool:
        conditions = (await cluster.get(PODS, "p", "default")).status.conditions
        return any("5Gi free of class 'fast'" in each.message for each in conditions)

    async def selected() -> str:
        claim = await cluster.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        return claim.metadata.annotations.get("volume.kubernetes.io/selected-node", "")

    await until(told)
    await publish(cluster, "zone-b", "b", "9Gi")
    assert await until(selected) == "b"
