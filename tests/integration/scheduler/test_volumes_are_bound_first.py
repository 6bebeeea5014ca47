"""Claims on a real API server: the volume is bound before the pod."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gangline.api.resources import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from gangline.kube.client.client import ApiClient
from gangline.local import custom_resources
from gangline.local.controllers import manager
from gangline.local.controllers.context import ControllerSettings
from gangline.scheduler.loop import run
from gangline.scheduler.settings import SchedulerSettings
from integration.cluster.embedded import until

HOST = "kubernetes.io/hostname"


@pytest.fixture
async def cluster(client: ApiClient) -> AsyncIterator[ApiClient]:
    """Two nodes and a scheduler; no controller provisions or binds volumes."""
    await custom_resources.install_definitions(client)
    for name in ("a", "b"):
        await client.create(NODES, {"metadata": {"name": name, "labels": {HOST: name}}})
        has = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
        await client.patch(NODES, name, {"status": status}, subresource="status")
    stop = asyncio.Event()
    task = asyncio.create_task(run(client, SchedulerSettings(), stop))
    yield client
    stop.set()
    await task


async def add_class(client: ApiClient, name: str, provisioner: str) -> None:
    body = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, {"metadata": {"name": name}, **body})


async def add_claim(client: ApiClient, name: str, made_by: str) -> None:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": made_by,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    await client.create(
        PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default"
    )


async def add_pod(client: ApiClient, name: str, claim: str) -> None:
    spec = {
        "schedulerName": "gangline",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }
    await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")


async def add_volume(client: ApiClient, name: str, host: str, made_by: str) -> None:
    here = {"key": HOST, "operator": "In", "values": [host]}
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": made_by,
        "local": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }
    await client.create(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": spec})


async def bind(client: ApiClient, claim: str, volume: str) -> None:
    """What the cluster's volume controller does."""
    await client.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"spec": {"volumeName": volume}}, "default")
    status = {"status": {"phase": "Bound"}}
    await client.patch(PERSISTENT_VOLUME_CLAIMS, claim, status, "default", subresource="status")


def node_of(client: ApiClient, pod: str) -> Callable[[], Awaitable[str]]:
    async def claim() -> str:
        return (await client.get(PODS, pod, "default")).spec.node_name

    return claim


def told(client: ApiClient, pod: str, text: str) -> Callable[[], Awaitable[bool]]:
    async def claim() -> bool:
        conditions = (await client.get(PODS, pod, "default")).status.conditions
        return any(text in condition.message for condition in conditions)

    return claim


async def test_a_volume_is_asked_for_on_the_node_before_the_pod_is_bound(
    cluster: ApiClient,
) -> None:
    await add_class(cluster, "cloud", "csi.example.com")
    await add_claim(cluster, "data", "cloud")
    await add_pod(cluster, "p", "data")

    async def selected() -> str:
        claim = await cluster.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")
        return claim.metadata.annotations.get("volume.kubernetes.io/selected-node", "")

    node = await until(selected)
    assert not await node_of(cluster, "p")()
    await add_volume(cluster, "made", node, "cloud")
    await bind(cluster, "data", "made")
    assert await until(node_of(cluster, "p")) == node


async def test_free_volume_is_reserved_and_the_pod_follows_it(
    cluster: ApiClient,
) -> None:
    await add_class(cluster, "disk", "kubernetes.io/no-provisioner")
    await add_claim(cluster, "data", "disk")
    await add_pod(cluster, "p", "data")
    await until(told(cluster, "p", "node(s) didn't find available persistent volumes to bind"))
    await add_volume(cluster, "disk-b", "b", "disk")

    async def kept() -> str:
        owner = (await cluster.get(PERSISTENT_VOLUMES, "disk-b")).spec.claim_ref
        return owner.name if owner else ""

    assert await until(kept) == "data"
    await bind(cluster, "data", "disk-b")
    assert await until(node_of(cluster, "p")) == "b"


async def test_the_embedded_clusters_own_volumes_are_waited_for(
    cluster: ApiClient, tmp_path: Path
) -> None:
    settings = ControllerSettings(volumes=tmp_path / "volumes", node_silence_s=3600)
    controllers = asyncio.create_task(manager.run_controllers(cluster, settings))
    try:
        await add_pod(cluster, "p", "late")
        await until(told(cluster, "p", 'persistentvolumeclaim "late" not found'))
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
        body = {"metadata": {"name": "late"}, "spec": spec}
        await cluster.create(PERSISTENT_VOLUME_CLAIMS, body, "default")
        assert await until(node_of(cluster, "p"))
        claim = await cluster.get(PERSISTENT_VOLUME_CLAIMS, "late", "default")
        assert claim.status.phase == "Bound"
    finally:
        controllers.cancel()
        await asyncio.gather(controllers, return_exceptions=True)
