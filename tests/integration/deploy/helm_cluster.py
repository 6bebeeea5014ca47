"""An embedded cluster without an operator, and Helm's library connected to it."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.cluster.embedded import EmbeddedCluster, embedded
from unit.operator.builders import manifest

helm = pytest.importorskip("helm_python", reason="the Helm library has no build for this platform")

CHART = Path(__file__).parents[3] / "deploy" / "chart"
NAMESPACE = "gangline-system"
RELEASE = "train"
TIMEOUT_S = 300
VALUES: Mapping[str, Any] = {
    # The cluster has both.
    "scheduler": {"enabled": False},
    "rbac": {"aggregate": False},
    # The tests' environment may belong to root, and be closed to others.
    "podSecurityContext": {"runAsNonRoot": None, "runAsUser": None, "fsGroup": None},
}


def job(name: str, masters: int, workers: int | None) -> dict[str, Any]:
    """A PyTorchJob in the namespace ``default``."""
    metadata = {"name": name, "namespace": "default"}
    return manifest(masters, workers, name=name) | {"metadata": metadata}


def set_command(job: dict[str, Any], image: str, command: list[str]) -> dict[str, Any]:
    """Give all containers of a job this image and command."""
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replicas["template"]["spec"]["containers"]
        container |= {"image": image, "command": command}
    return job


@asynccontextmanager
async def cluster_with_images(
    folder: Path, images: Mapping[str, Mapping[str, Any]]
) -> AsyncIterator[EmbeddedCluster]:
    """A cluster without an operator; the chart's image is the environment of the tests."""
    file = folder / "images.yaml"
    # The first pattern that matches counts, so their order stays.
    entries = {**images, "gangline:*": {"env": sys.prefix}}
    file.write_text(yaml.safe_dump(entries, sort_keys=False))
    arguments = ("--nodes", "2", "--without", "operator", "--image-map", str(file))
    async with embedded(folder / "home", *arguments) as cluster:
        yield cluster


def release_of(cluster: EmbeddedCluster, namespace: str = NAMESPACE) -> Any:
    """Helm, connected to the cluster."""
    kubeconfig = str(cluster.home.default_kubeconfig)
    return helm.Config(kubeconfig_path=kubeconfig, namespace=namespace)
