"""A release of the chart on the embedded cluster: its operator runs as a pod, and trains.

Takes 60 s: a package environment is made, and a job trains.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from cluster_objects import list_objects
from gangline.api.resources import DEPLOYMENTS, NAMESPACES, PODS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Invalid
from gangline.operator.webhook.configuration import CONFIGURATION_RESOURCES
from integration.cluster.embedded import EmbeddedCluster, until
from integration.deploy.helm_cluster import (
    CHART,
    NAMESPACE,
    RELEASE,
    TIMEOUT_S,
    VALUES,
    cluster_with_images,
    helm,
    job,
    release_of,
    set_command,
)

OTHER = "other"
SLEEP = ["python", "-c", "import time; time.sleep(600)"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """A cluster without an operator; the image of the chart is the environment of the tests."""
    async with cluster_with_images(tmp_path, {}) as cluster:
        yield cluster


async def take_over_crds(client: ApiClient) -> None:
    """Mark the cluster's own CRDs as parts of the release, as docs/deployment.md says."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for each in (await client.request_json("GET", path))["items"]:
        owned = {
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": RELEASE,
                "meta.helm.sh/release-namespace": NAMESPACE,
            },
        }
        await client.request_json(
            "PATCH",
            f"{path}/{each['metadata']['name']}",
            body={"metadata": owned},
            content_type="application/merge-patch+json",
        )


async def run_gangline(cluster: EmbeddedCluster, *arguments: str) -> tuple[int | None, str]:
    """Run a command; return its exit status and output."""
    process = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).with_name("gangline"), *arguments),
        env=cluster.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def assert_second_release_is_refused(cluster: EmbeddedCluster, client: ApiClient) -> None:
    """Neither Helm nor ``gangline deploy`` changes anything; both name the release in the way."""
    before = await list_objects(client)
    second = release_of(cluster, OTHER)
    with pytest.raises(helm.HelmError) as refused:
        second.install(CHART, "second", VALUES, namespace=OTHER, create_namespace=True)
    message = f"Gangline is installed already, by the release {RELEASE} in the namespace"
    assert f"{message} {NAMESPACE}. A cluster has one release" in str(refused.value)
    status, output = await run_gangline(cluster, "deploy", "--namespace", OTHER)
    assert status == 2
    assert f"installed in the namespace {NAMESPACE}: a cluster has one release" in output
    assert "nothing was changed" in output
    left = {each for each in await list_objects(client) - before if not each.startswith("Lease ")}
    assert left == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_release_is_installed_tested_and_uninstalled(
    cluster: EmbeddedCluster,
) -> None:
    release = release_of(cluster)
    async with cluster.client() as client:
        with pytest.raises(helm.HelmError, match="cannot be imported into the current release"):
            release.install(CHART, RELEASE, VALUES, namespace=NAMESPACE, create_namespace=True)
        assert NAMESPACE not in {
            each.metadata.name for each in (await client.list(NAMESPACES)).items
        }
        await take_over_crds(client)

        release.install(
            CHART,
            RELEASE,
            VALUES,
            namespace=NAMESPACE,
            create_namespace=True,
            wait="watcher",
            timeout=TIMEOUT_S,
        )
        tested = release.test(RELEASE, logs=True, timeout=TIMEOUT_S)
        assert "has succeeded" in tested["logs"]

        async def is_refused() -> bool:
            try:
                await client.create(PYTORCH_JOBS, job("empty", 0, 0), "default")
            except Invalid:
                return True
            await client.delete(PYTORCH_JOBS, "empty", "default")
            return False

        await until(is_refused)

        long = set_command(job("long", 1, 1), "gangline:0.1.0", SLEEP)
        await client.create(PYTORCH_JOBS, long, "default")

        async def running() -> dict[str, str]:
            pods = (await client.list(PODS, "default")).items
            found = {p.metadata.name: p.metadata.uid for p in pods if p.status.phase == "Running"}
            return found if len(found) == 2 else {}

        before = await until(running)
        await assert_second_release_is_refused(cluster, client)

        release.uninstall(RELEASE, wait="watcher", timeout=TIMEOUT_S)
        for resource in CONFIGURATION_RESOURCES:
            assert (await client.list(resource)).items == [], (
                "no call goes to a server that is gone"
            )
        assert await client.get(PYTORCH_JOBS, "long", "default")
        assert await running() == before

        # The same without Helm, which takes over the CRDs that the release has left.
        file = cluster.root / "values.yaml"
        file.write_text(yaml.safe_dump(VALUES))
        one = ("--set", "operator.replicas=1")
        status, output = await run_gangline(cluster, "deploy", "--values", str(file), *one)
        assert status == 0, output
        found = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)
        assert found.status.available_replicas == 1, "deploy waits for the pods"
        await until(is_refused)
        status, output = await run_gangline(cluster, "undeploy", "--force")
        assert status == 0, output
        for resource in CONFIGURATION_RESOURCES:
            assert (await client.list(resource)).items == []
        assert await running() == before
