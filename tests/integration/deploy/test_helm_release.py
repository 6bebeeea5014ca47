"""A release of the chart on the embedded cluster: its operator runs as a pod, and trains."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.api.resources import DEPLOYMENTS, NAMESPACES, PODS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import Invalid
from gangline.operator.webhook.configuration import CONFIGURATION_RESOURCES
from integration.cluster.embedded import EmbeddedCluster, embedded, until
from unit.operator.builders import manifest

helm = pytest.importorskip("helm_python", reason="the Helm library has no build for this platform")

CHART = Path(__file__).parents[3] / "deploy" / "chart"
NAMESPACE = "gangline-system"
RELEASE = "train"
TIMEOUT_S = 300
VALUES: dict[str, Any] = {
    # The cluster has both.
    "scheduler": {"enabled": False},
    "rbac": {"aggregate": False},
    # The tests' environment may belong to root, and be closed to others.
    "podSecurityContext": {"runAsNonRoot": None, "runAsUser": None, "fsGroup": None},
}
SLEEP = ["python", "-c", "import time; time.sleep(600)"]


def job(name: str, masters: int, workers: int) -> dict[str, Any]:
    """A PyTorchJob in the namespace ``default``."""
    metadata = {"name": name, "namespace": "default"}
    return manifest(masters, workers, name=name) | {"metadata": metadata}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """A cluster without an operator; the image of the chart is the environment of the tests."""
    images = tmp_path / "images.yaml"
    images.write_text(yaml.safe_dump({"gangline:*": {"env": sys.prefix}}))
    arguments = ("--nodes", "2", "--without", "operator", "--image-map", str(images))
    async with embedded(tmp_path / "home", *arguments) as cluster:
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


async def run_gangline(cluster: EmbeddedCluster, *arguments: str) -> None:
    """Run a command that must succeed."""
    process = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).with_name("gangline"), *arguments),
        env=cluster.environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


def release_of(cluster: EmbeddedCluster) -> Any:
    """Helm, connected to the cluster."""
    kubeconfig = str(cluster.home.default_kubeconfig)
    return helm.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_release_is_installed_tested_upgraded_rolled_back_and_uninstalled(
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

        long = job("long", 1, 1)
        for replicas in long["spec"]["pytorchReplicaSpecs"].values():
            (container,) = replicas["template"]["spec"]["containers"]
            container |= {"image": "gangline:0.1.0", "command": SLEEP}
        await client.create(PYTORCH_JOBS, long, "default")

        async def running() -> dict[str, str]:
            pods = (await client.list(PODS, "default")).items
            found = {p.metadata.name: p.metadata.uid for p in pods if p.status.phase == "Running"}
            return found if len(found) == 2 else {}

        before = await until(running)
        for change in (
            lambda: release.upgrade(
                CHART,
                RELEASE,
                VALUES | {"operator": {"args": ["--log-level=debug"]}},
                wait="watcher",
                timeout=TIMEOUT_S,
            ),
            lambda: release.rollback(RELEASE, version=1, wait="watcher", timeout=TIMEOUT_S),
        ):
            old = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)
            change()
            new = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)
            assert old.spec.template != new.spec.template
            assert await running() == before, "an upgrade restarts no pod of a job"
            await until(is_refused)

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
        await run_gangline(cluster, "deploy", "--values", str(file), "--set", "operator.replicas=1")
        found = await client.get(DEPLOYMENTS, "gangline-operator", NAMESPACE)
        assert found.status.available_replicas == 1, "deploy waits for the pods"
        await until(is_refused)
        await run_gangline(cluster, "undeploy", "--force")
        for resource in CONFIGURATION_RESOURCES:
            assert (await client.list(resource)).items == []
        assert await running() == before
