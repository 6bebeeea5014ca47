"""A node is drained: the replicas of a release are on two nodes, and one of them runs always."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.api.core.pod import Pod
from gangline.api.resources import NODES, PODS
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, until
from integration.deploy.helm_cluster import (
    CHART,
    NAMESPACE,
    RELEASE,
    TIMEOUT_S,
    VALUES,
    cluster_with_images,
    release_of,
)
from integration.deploy.test_helm_release import take_over_crds
from integration.kubectl.tool import Kubectl
from kubectl_versions import PROGRAMS, missing_reason

VERSION = "1.32"
REPLICAS = 2


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """Two nodes, without an operator."""
    async with cluster_with_images(tmp_path, {}) as cluster:
        yield cluster


def is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)


async def replicas(client: ApiClient) -> list[Pod]:
    """The pods of the operator that are not about to end."""
    pods = (await client.list(PODS, NAMESPACE)).items
    return [
        pod
        for pod in pods
        if "-operator-" in pod.metadata.name and not pod.metadata.deletion_timestamp
    ]


async def fewest_ready(client: ApiClient) -> AsyncIterator[int]:
    """The smallest number of ready replicas so far, at each change of a pod."""
    ready = {pod.metadata.name: is_ready(pod) for pod in await replicas(client)}
    fewest = sum(ready.values())
    async for event in client.watch(PODS, NAMESPACE):
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            pod = event.object
            ends = event.type == "DELETED" or pod.metadata.deletion_timestamp
            ready[pod.metadata.name] = not ends and is_ready(pod)
        fewest = min(fewest, sum(ready.values()))
        yield fewest


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PROGRAMS[VERSION], reason=missing_reason(VERSION))
async def test_case_7_a_drained_node_leaves_one_replica_at_work(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    kubectl = Kubectl(
        PROGRAMS[VERSION], cluster.home.default_kubeconfig, tmp_path, NAMESPACE, old=False
    )
    async with cluster.client() as client:
        await take_over_crds(client)
        release_of(cluster).install(
            CHART,
            RELEASE,
            VALUES,
            namespace=NAMESPACE,
            create_namespace=True,
            wait="watcher",
            timeout=TIMEOUT_S,
        )
        before = await replicas(client)
        nodes = {pod.spec.node_name for pod in before}
        assert len(before) == len(nodes) == REPLICAS, "not two replicas on one node"
        assert nodes == {node.metadata.name for node in (await client.list(NODES)).items}

        seen: list[int] = []

        async def watch() -> None:
            async for fewest in fewest_ready(client):
                seen.append(fewest)

        watching = asyncio.create_task(watch())
        try:
            drained, rest = sorted(nodes)
            drain = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=50s")
            output = await asyncio.to_thread(kubectl, f"drain {drained}", *drain)
            assert "evicted" in output

            async def replaced() -> bool:
                pods = await replicas(client)
                places = [pod.spec.node_name for pod in pods if is_ready(pod)]
                return places == [rest] * REPLICAS

            await until(replaced, 60)
            # The other node is drained only after a replica runs on the first one again.
            await asyncio.to_thread(kubectl, f"uncordon {drained}")
            await asyncio.to_thread(kubectl, f"drain {rest}", *drain)

            async def moved() -> bool:
                pods = await replicas(client)
                return [p.spec.node_name for p in pods if is_ready(p)] == [drained] * REPLICAS

            await until(moved, 60)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        assert seen, "the watch has followed the drain"
        assert seen[-1] == 1
