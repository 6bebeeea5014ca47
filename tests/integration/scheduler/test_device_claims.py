"""Devices of ResourceClaims on the embedded cluster: from a template to the end of its pods."""

from typing import Any

import pytest

from gangline.api.core.devices import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from gangline.api.core.pod import Pod
from gangline.api.job_resources import PYTORCH_JOBS
from gangline.api.meta.conditions import find_condition
from gangline.api.resources import EVENTS, NODES, PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Invalid
from integration.cluster.embedded import EmbeddedCluster, until

NS = "default"
DRIVER = "gpu.example.com"
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
POD = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 0,
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    "containers": [
        {
            "name": "pytorch",
            "image": "any",
            "command": ["sleep", "600"],
            "resources": {"claims": [{"name": "gpu"}]},
        }
    ],
}


async def publish(client: ApiClient) -> list[str]:
    """Publish two devices of each node; return the nodes."""
    nodes = [node.metadata.name for node in (await client.list(NODES)).items]
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    await client.create(
        DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}
    )
    for node in nodes:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": "gpu-0"}, {"name": "gpu-1"}]
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        await client.create(RESOURCE_SLICES, {"metadata": {"name": node}, "spec": spec})
    spec = {"spec": {"devices": {"requests": [REQUEST]}}}
    body = {"metadata": {"name": "one-gpu"}, "spec": spec}
    await client.create(RESOURCE_CLAIM_TEMPLATES, body, NS)
    return nodes


async def test_gang_gets_distinct_devices_and_others_wait_for_those_without_a_taint(
    shared_cluster: EmbeddedCluster,
) -> None:
    async with shared_cluster.client() as client:
        nodes = await publish(client)
        taint = {"key": "broken", "effect": "NoSchedule"}
        where = {"driver": DRIVER, "pool": nodes[0], "device": "gpu-1"}
        rule = {"deviceSelector": where, "taint": taint}
        await client.create(DEVICE_TAINT_RULES[0], {"metadata": {"name": "broken"}, "spec": rule})
        replicas = {
            role: {"replicas": count, "template": {"spec": POD}}
            for role, count in (("Master", 1), ("Worker", 2))
        }
        job = {"metadata": {"name": "train"}, "spec": {"pytorchReplicaSpecs": replicas}}
        await client.create(PYTORCH_JOBS, job, NS)

        async def pods() -> list[Pod]:
            listed = (await client.list(PODS, NS)).items
            return [pod for pod in listed if pod.metadata.name.startswith("train-")]

        async def runs() -> bool:
            return [pod.status.phase for pod in await pods()] == ["Running"] * 3

        await until(runs, explain=shared_cluster.said)
        node_of = {pod.metadata.uid: pod.spec.node_name for pod in await pods()}
        taken = set()
        for claim in (await client.list(RESOURCE_CLAIMS, NS)).items:
            assert claim.status.allocation is not None
            (device,) = claim.status.allocation.devices.results
            (user,) = claim.status.reserved_for
            assert node_of[user.uid] == device.pool
            taken.add((device.pool, device.device))
        assert len(taken) == 3
        assert (nodes[0], "gpu-1") not in taken

        body = {"metadata": {"name": "late"}, "spec": {**POD, "schedulerName": "gangline"}}
        await client.create(PODS, body, NS)

        async def late() -> Pod:
            return await client.get(PODS, "late", NS)

        async def waits() -> bool:
            condition = find_condition((await late()).status.conditions, "PodScheduled")
            return condition is not None and "cannot allocate all claims" in condition.message

        async def late_runs() -> bool:
            return (await late()).status.phase == "Running"

        await until(waits, explain=shared_cluster.said)
        await client.delete(DEVICE_TAINT_RULES[0], "broken")
        await until(late_runs, explain=shared_cluster.said)
        assert (await late()).spec.node_name == nodes[0]
        await client.delete(PYTORCH_JOBS, "train", NS)

        async def only_the_claim_of_the_late_pod_is_left() -> bool:
            claims = (await client.list(RESOURCE_CLAIMS, NS)).items
            return [claim.metadata.name.startswith("late-gpu-") for claim in claims] == [True]

        await until(only_the_claim_of_the_late_pod_is_left, explain=shared_cluster.said)
        rule["taint"]["effect"] = "NoExecute"  # type: ignore[index]
        await client.create(DEVICE_TAINT_RULES[0], {"metadata": {"name": "gone"}, "spec": rule})

        async def late_pod_is_evicted() -> bool:
            return not (await client.list(PODS, NS)).items

        await until(late_pod_is_evicted, explain=shared_cluster.said)
        events = (await client.list(EVENTS, NS)).items
        assert "DeviceTaintManagerEviction" in {event.reason for event in events}


async def test_claim_that_pods_share_is_freed_after_the_last_of_them(
    shared_cluster: EmbeddedCluster,
) -> None:
    async with shared_cluster.client() as client:
        await publish(client)
        spec = {"devices": {"requests": [REQUEST]}}
        await client.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": spec}, NS)
        own = [{"name": "gpu", "resourceClaimName": "shared"}]
        for name, command in (("short", ["true"]), ("long", ["sleep", "600"])):
            container = {**POD["containers"][0], "command": command}  # type: ignore[index]
            fields = {"resourceClaims": own, "containers": [container], "schedulerName": "gangline"}
            await client.create(PODS, {"metadata": {"name": name}, "spec": POD | fields}, NS)

        async def users() -> list[str]:
            claim = await client.get(RESOURCE_CLAIMS, "shared", NS)
            return [user.name for user in claim.status.reserved_for]

        async def long_is_left() -> bool:
            short = await client.get(PODS, "short", NS)
            return short.status.phase == "Succeeded" and await users() == ["long"]

        await until(long_is_left, explain=shared_cluster.said)
        claim = await client.get(RESOURCE_CLAIMS, "shared", NS)
        assert claim.status.allocation is not None
        change: Any = {"status": {"allocation": {"devices": {"results": []}}}}
        with pytest.raises(Invalid, match=r"status\.allocation.*field is immutable"):
            await client.patch(RESOURCE_CLAIMS, "shared", change, NS, subresource="status")
        await client.delete(RESOURCE_CLAIMS, "shared", NS)
        assert (await client.get(RESOURCE_CLAIMS, "shared", NS)).status.allocation is not None
        await client.delete(PODS, "long", NS)

        async def is_gone() -> bool:
            return not (await client.list(RESOURCE_CLAIMS, NS)).items

        await until(is_gone, explain=shared_cluster.said)
