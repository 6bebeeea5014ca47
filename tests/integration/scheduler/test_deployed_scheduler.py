"""The chart's manifests suffice for the scheduler, and Volcano is left alone."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from chart_objects import OFF, chart_objects
from gangline.api.resources import (
    EVENTS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    STORAGE_CLASSES,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.errors import NotFound
from gangline.kube.probes import Address, Health
from gangline.local import custom_resources
from gangline.local.apiserver.server import ApiServer
from gangline.scheduler.loop import run, without_volcano_name
from gangline.scheduler.settings import SchedulerSettings
from integration.cluster.embedded import until
from integration.operator.process import apply, kubeconfig_of


def deployed() -> list[dict[str, Any]]:
    return chart_objects(operator=OFF, rbac={"aggregate": False}, priorityClass={"create": False})


async def add_gang(client: ApiClient, name: str, cpu: str, priority: str = "", **pod: Any) -> None:
    spec = {"minMember": 1, "priorityClassName": priority}
    await client.create(POD_GROUPS, {"metadata": {"name": name}, "spec": spec}, "default")
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": name, "annotations": {"scheduling.k8s.io/group-name": name}}
    body = {"schedulerName": "gangline", "priorityClassName": priority, "containers": [container]}
    await client.create(PODS, {"metadata": metadata, "spec": body | pod}, "default")


def placed(client: ApiClient, name: str) -> Callable[[], Awaitable[str]]:
    async def claim() -> str:
        return (await client.get(PODS, name, "default")).spec.node_name

    return claim


async def test_its_rights_are_enough_to_place_evict_promise_and_report(
    client: ApiClient, api_server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await custom_resources.install_definitions(client)
    for manifest in deployed():
        if manifest["kind"] not in {"Deployment", "Service"}:
            await apply(client, manifest)
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 9})
    waits = {"provisioner": "x.example.com", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASSES, {"metadata": {"name": "made"}, **waits})
    await client.create(NODES, {"metadata": {"name": "n"}})
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {"cpu": "2", "pods": "10"}, "conditions": ready}
    await client.patch(NODES, "n", {"status": status}, subresource="status")

    account = "gangline-system/gangline-scheduler"
    mine = await kubeconfig_of(client, account, api_server.kubeconfig, tmp_path / "kubeconfig")
    settings = SchedulerSettings(
        leader_election=True,
        queue_status_interval_s=0.1,
        metrics_address=Address("127.0.0.1", 0),
        health_address=Address("127.0.0.1", 0),
    )
    health, stop = Health(), asyncio.Event()
    async with ApiClient(load_config(str(mine))) as own:
        scheduler = asyncio.create_task(run(own, settings, stop, health))
        await add_gang(client, "low", "2")
        assert await until(placed(client, "low")) == "n"
        await add_gang(client, "later", "2")
        await add_gang(client, "high", "2", "high")

        async def evicted() -> bool:
            try:
                pod = await client.get(PODS, "low", "default")
            except NotFound:
                return True
            return pod.metadata.deletion_timestamp is not None

        assert await until(evicted)

        async def told() -> bool:
            events = (await client.list(EVENTS, "default")).items
            kinds = {(event.involved_object.kind, event.reason) for event in events}
            return {("PodGroup", "Unschedulable"), ("Pod", "FailedScheduling")} <= kinds

        assert await until(told)
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "made"}
        spec |= {"resources": {"requests": {"storage": "1"}}}
        claim = {"metadata": {"name": "c"}, "spec": spec}
        await client.create(PERSISTENT_VOLUME_CLAIMS, claim, "default")
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        await add_gang(client, "stored", "0", volumes=volumes)

        async def asked_for() -> bool:
            found = await client.get(PERSISTENT_VOLUME_CLAIMS, "c", "default")
            return found.metadata.annotations.get("volume.kubernetes.io/selected-node") == "n"

        assert await until(asked_for)

        async def counted() -> bool:
            queue = await client.get(QUEUES, "default")
            return queue.status.state == "Open" and queue.status.inqueue > 0

        assert await until(counted)
        async with ClientSession() as session:
            for path in ("/readyz", "/metrics"):
                async with session.get(f"http://127.0.0.1:{health.ports[path]}{path}") as page:
                    assert page.status == 200
        stop.set()
        await scheduler
    refused = [record.getMessage() for record in caplog.records]
    assert not [text for text in refused if "forbidden" in text.lower()]


@pytest.mark.parametrize(("replicas", "left"), [(1, True), (0, False)])
async def test_pods_of_volcano_are_left_to_it_where_it_runs(
    client: ApiClient, replicas: int, left: bool
) -> None:
    settings = SchedulerSettings()
    assert await without_volcano_name(client, settings) is settings
    await client.create(NAMESPACES, {"metadata": {"name": "volcano-system"}})
    labels = {"app": "volcano-scheduler"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": "volcano-scheduler", "labels": labels}, "spec": spec}
    await client.request_json(
        "POST", "/apis/apps/v1/namespaces/volcano-system/deployments", body=body
    )
    names = (await without_volcano_name(client, settings)).scheduler_names
    assert names == ({"gangline"} if left else {"gangline", "volcano"})
