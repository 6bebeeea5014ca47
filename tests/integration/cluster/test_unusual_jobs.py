"""Jobs in unusual situations on a running cluster: refusals, resources, groups.

Takes 25 s: refused pods are tried again after a growing delay.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gangline.api.jobs.kubeflow import PyTorchJob
from gangline.api.meta.conditions import is_condition_true
from gangline.api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    ELASTIC_JOBS,
    NODES,
    POD_GROUPS,
    PODS,
    PYTORCH_JOBS,
)
from gangline.kube.client.client import ApiClient, PatchKind
from integration.cluster.embedded import EmbeddedCluster, cluster_of_module, until

pytestmark = pytest.mark.slow

VGPU = "tencent.com/vcuda-core"
NIC = "example.com/nic"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """One node that is larger than any machine that runs these tests, with a virtual GPU.

    The last test deletes a definition.
    """
    arguments = ("--cpus", "32", "--memory", "64Gi", "--resource", f"{VGPU}=500")
    home = tmp_path_factory.mktemp("large") / "home"
    with cluster_of_module(home, *arguments, "--heartbeat", "0.5") as running:
        asyncio.run(until_ready(running))
        yield running


async def until_ready(cluster: EmbeddedCluster) -> None:
    """Wait until the node is ready: the API server serves requests before."""
    async with cluster.client() as client:

        async def is_ready() -> bool:
            nodes = (await client.list(NODES)).items
            return any(is_condition_true(node.status.conditions, "Ready") for node in nodes)

        await until(is_ready)


def role(command: str = "sleep 1000", replicas: int = 1, **spec: Any) -> dict[str, Any]:
    resources = spec.pop("resources", {})
    policy = spec.pop("restart", "Never")
    container = {
        "name": "pytorch",
        "image": "none",
        "command": ["sh", "-c", command],
        "resources": {"limits": resources},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {"replicas": replicas, "restartPolicy": policy, "template": {"spec": pod}}


def job(name: str, /, policy: dict[str, Any] | None = None, **roles: Any) -> dict[str, Any]:
    spec = {"runPolicy": policy or {}, "pytorchReplicaSpecs": roles}
    return {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


async def running_pods(client: ApiClient, name: str) -> set[str]:
    label = f"training.kubeflow.org/job-name={name}"
    pods = (await client.list(PODS, "default", labels=label)).items
    return {
        pod.metadata.name
        for pod in pods
        if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    }


async def stored_job(client: ApiClient, name: str) -> PyTorchJob:
    return await client.get(PYTORCH_JOBS, name, "default")


async def test_refused_pod_is_retried_with_a_delay_and_the_job_does_not_fail(
    cluster: EmbeddedCluster,
) -> None:
    too_large = role(resources={"cpu": "1000"}, nodeName="node-1")
    async with cluster.client() as client:
        seen: set[str] = set()

        async def watch_pods() -> None:
            async for event in client.watch(PODS):
                if event.object.metadata.name == "big-worker-0":
                    seen.add(event.object.metadata.uid)

        watching = asyncio.create_task(watch_pods())
        await client.create(
            PYTORCH_JOBS, job("big", {"backoffLimit": 0}, Worker=too_large), "default"
        )

        async def was_refused_thrice() -> bool:
            ranks = (await stored_job(client, "big")).status.restarts.ranks
            return "worker-0" in ranks and ranks["worker-0"].refusals >= 3

        await until(was_refused_thrice)
        stored = await stored_job(client, "big")
        watching.cancel()
        await client.delete(PYTORCH_JOBS, "big", "default")
    assert not is_condition_true(stored.status.conditions, "Failed")
    assert stored.status.restarts.total == 0
    refusals = stored.status.restarts.ranks["worker-0"].refusals
    assert len(seen) <= refusals + 1, "one pod for each counted refusal, and the next one"


async def test_elastic_job_with_virtual_gpus_runs(cluster: EmbeddedCluster) -> None:
    amounts = {"cpu": 2, "memory": "3Gi", VGPU: 100}
    container = {
        "name": "main",
        "image": "registry.example.com/dlrover:pytorch-example",
        "imagePullPolicy": "Always",
        "command": ["/bin/bash", "-c", "sleep 1000"],
        "resources": {"limits": amounts, "requests": amounts},
    }
    worker = {
        "replicas": 5,
        "template": {"spec": {"restartPolicy": "Always", "containers": [container]}},
    }
    written = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "mnist", "labels": {"some-label": "some-value"}},
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "optimizeMode": "cluster",
            "replicaSpecs": {"worker": worker},
        },
    }
    async with cluster.client() as client:
        node = await client.get(NODES, "node-1")
        assert node.status.allocatable[VGPU] == "500"
        await client.create(ELASTIC_JOBS, written, "default")

        async def all_run() -> bool:
            names = await running_pods(client, "mnist")
            return {f"mnist-edljob-worker-{index}" for index in range(5)} <= names

        await until(all_run)


async def test_patched_resource_of_a_node_stays_and_is_used(cluster: EmbeddedCluster) -> None:
    async with cluster.client() as client:
        path = f"/status/capacity/{NIC.replace('/', '~1')}"
        patch = [{"op": "add", "path": path, "value": "2"}]
        await client.patch(NODES, "node-1", patch, kind=PatchKind.JSON, subresource="status")
        await client.patch(NODES, "node-1", {"metadata": {"labels": {"disk": "fast"}}})
        two = role(resources={NIC: "1"}, replicas=2, nodeSelector={"disk": "fast"})
        await client.create(PYTORCH_JOBS, job("nics", Worker=two), "default")

        async def both_run() -> bool:
            return len(await running_pods(client, "nics")) == 2

        await until(both_run)
        assert (await client.get(NODES, "node-1")).status.allocatable[NIC] == "2"
    await cluster.end()
    await cluster.start()
    await until_ready(cluster)
    async with cluster.client() as client:
        assert (await client.get(NODES, "node-1")).status.capacity[NIC] == "2"


async def test_users_own_group_of_the_jobs_name_is_used_and_stays(
    cluster: EmbeddedCluster,
) -> None:
    group = {"metadata": {"name": "own"}, "spec": {"minMember": 1, "minResources": {"cpu": "1"}}}
    async with cluster.client() as client:
        await client.create(POD_GROUPS, group, "default")
        await client.create(PYTORCH_JOBS, job("own", Worker=role("true", 2)), "default")

        async def has_ended() -> bool:
            stored = await stored_job(client, "own")
            assert not is_condition_true(stored.status.conditions, "Stalled")
            return is_condition_true(stored.status.conditions, "Succeeded")

        await until(has_ended)
        found = await client.get(POD_GROUPS, "own", "default")
        assert (found.spec.min_member, found.metadata.owner_references) == (1, [])


async def test_running_gang_gets_replacements_without_the_definition_of_pod_groups(
    cluster: EmbeddedCluster,
) -> None:
    async with cluster.client() as client:
        workers = role(replicas=2, restart="OnFailure")
        await client.create(PYTORCH_JOBS, job("train", Worker=workers), "default")

        async def both_run() -> bool:
            return len(await running_pods(client, "train")) == 2

        await until(both_run)
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, "podgroups.scheduling.volcano.sh")
        before = await client.get(PODS, "train-worker-1", "default")
        await client.delete(PODS, "train-worker-1", "default")

        async def is_replaced() -> bool:
            pods = (await client.list(PODS, "default")).items
            return any(
                pod.metadata.name == "train-worker-1"
                and pod.metadata.uid != before.metadata.uid
                and pod.status.phase == "Running"
                for pod in pods
            )

        await until(is_replaced, explain=cluster.said)
