"""A gang of Kubernetes' own PodGroup on the embedded cluster: all of its pods start, or none."""

import asyncio
import json
from typing import Any

import pytest

from gangline.api.core.pod import Pod
from gangline.api.meta.conditions import find_condition
from gangline.api.meta.objects import Condition
from gangline.api.resources import (
    KUBERNETES_POD_GROUPS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    WORKLOADS,
)
from gangline.cli import main
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Forbidden, Invalid, NotFound
from gangline.scheduler import loop as scheduler
from gangline.scheduler.settings import SchedulerSettings
from integration.cluster.embedded import EmbeddedCluster, until

NS = "default"


async def add_pod(client: ApiClient, name: str) -> None:
    container = {"name": "c", "image": "any", "command": ["true"]}
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "schedulingGroup": {"podGroupName": "train"},
    }
    await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, NS)


def group(name: str = "train", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"basic": {}}} | spec}


async def test_gang_of_a_workload_waits_for_all_of_its_pods_and_completes(
    shared_cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async with shared_cluster.client() as client:
        for name in ("train-0", "train-1"):
            await add_pod(client, name)

        async def pods() -> list[Pod]:
            listed = (await client.list(PODS, NS)).items
            return [pod for pod in listed if pod.metadata.name.startswith("train-")]

        async def waits_for_its_group() -> bool:
            texts = [
                condition.message for pod in await pods() for condition in pod.status.conditions
            ]
            return any("'default/train' of scheduling.k8s.io does not exist" in t for t in texts)

        await until(waits_for_its_group, explain=shared_cluster.said)
        policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        template = {"name": "workers", **policy}
        workload = {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": [template]}}
        reference = {"workloadName": "w", "templateName": "workers"}
        with pytest.raises(Forbidden, match='workload "w" was not found'):
            await client.create(KUBERNETES_POD_GROUPS, group(workloadRef=reference), NS)
        await client.create(WORKLOADS, workload, NS)
        body = group(workloadRef=reference, **policy)
        await client.create(KUBERNETES_POD_GROUPS, body | {"status": {"conditions": []}}, NS)

        async def scheduled() -> Condition | None:
            stored = await client.get(KUBERNETES_POD_GROUPS, "train", NS)
            return find_condition(stored.status.conditions, "PodGroupInitiallyScheduled")

        async def waits() -> bool:
            found = await scheduled()
            return found is not None and "2 of the 3 pods" in found.message

        await until(waits, explain=shared_cluster.said)
        condition = await scheduled()
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", "Unschedulable")
        assert not any(pod.spec.node_name for pod in await pods())
        line = ["explain", "train", "-o", "json", "--kubeconfig"]
        await asyncio.to_thread(main.run, [*line, str(shared_cluster.home.default_kubeconfig)])
        (explained,) = json.loads(capsys.readouterr().out)
        assert (explained["kind"], explained["minimum"]) == ("PodGroup.scheduling.k8s.io", 3)
        await add_pod(client, "train-2")

        async def completed() -> bool:
            return [pod.status.phase for pod in await pods()] == ["Succeeded"] * 3

        async def is_scheduled() -> bool:
            found = await scheduled()
            return found is not None and (found.status, found.reason) == ("True", "Scheduled")

        await until(completed, explain=shared_cluster.said)
        await until(is_scheduled, explain=shared_cluster.said)


async def test_api_server_admits_groups_as_kubernetes_does(client: ApiClient) -> None:
    with pytest.raises(Forbidden, match="no PriorityClass with name high was found"):
        await client.create(KUBERNETES_POD_GROUPS, group(priorityClassName="high"), NS)
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 7})
    made = await client.create(KUBERNETES_POD_GROUPS, group(priorityClassName="high"), NS)
    assert made.spec.priority == 7
    change = {"spec": {"disruptionMode": {"all": {}}}}
    with pytest.raises(Invalid, match=r"spec\.disruptionMode.*field is immutable"):
        await client.patch(KUBERNETES_POD_GROUPS, "train", change, NS)
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGroup": {}}
    with pytest.raises(Invalid, match=r"schedulingGroup\.podGroupName: Required value"):
        await client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, NS)


async def test_preempted_group_loses_all_of_its_pods_and_says_so(client: ApiClient) -> None:
    await client.create(NODES, {"metadata": {"name": "a"}})
    has = {"cpu": "2", "memory": "8Gi", "pods": "10"}
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(NODES, "a", {"status": status}, subresource="status")
    await client.create(KUBERNETES_POD_GROUPS, group(disruptionMode={"all": {}}), NS)
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 7})
    stop = asyncio.Event()
    running = asyncio.create_task(scheduler.run(client, SchedulerSettings(), stop))

    async def add(name: str, **fields: Any) -> None:
        requests = {"resources": {"requests": {"cpu": "1"}}}
        container = {"name": "c", "image": "i", **requests}
        spec = {"schedulerName": "gangline", "containers": [container], **fields}
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec}, NS)

    async def conditions() -> dict[str, str]:
        stored = await client.get(KUBERNETES_POD_GROUPS, "train", NS)
        return {c.type: c.status for c in stored.status.conditions}

    async def placed() -> bool:
        pods = (await client.list(PODS, NS)).items
        is_scheduled = (await conditions()).get("PodGroupInitiallyScheduled") == "True"
        return is_scheduled and all(pod.spec.node_name for pod in pods)

    async def disrupted() -> bool:
        pods = [(await client.get(PODS, name, NS)) for name in ("train-0", "train-1")]
        ending = all(pod.metadata.deletion_timestamp for pod in pods)
        return ending and (await conditions()).get("DisruptionTarget") == "True"

    try:
        for name in ("train-0", "train-1"):
            await add(name, schedulingGroup={"podGroupName": "train"})
        await until(placed)
        await add("urgent", priorityClassName="high")
        await until(disrupted)
        assert (await conditions())["PodGroupInitiallyScheduled"] == "True"
    finally:
        stop.set()
        await running


async def test_groups_end_with_their_namespace(shared_cluster: EmbeddedCluster) -> None:
    async with shared_cluster.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": "team"}})
        await client.create(KUBERNETES_POD_GROUPS, group(), "team")
        await client.delete(NAMESPACES, "team")

        async def gone() -> bool:
            try:
                await client.get(NAMESPACES, "team")
            except NotFound:
                return True
            return False

        await until(gone, explain=shared_cluster.said)
