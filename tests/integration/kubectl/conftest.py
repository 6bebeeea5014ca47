"""One running cluster for all kubectl tests; each kubectl has its own namespace."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local import cleanup
from integration.cluster.embedded import EmbeddedCluster
from integration.kubectl.manifests import CLAIM, JOB, TALKER, WEB
from integration.kubectl.tool import Kubectl, until

PROGRAMS = {
    "current": shutil.which("kubectl") or "",
    "1.20": os.environ.get("GANGLINE_KUBECTL_OLD", ""),
}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Three nodes with all components that ``gangline up`` runs."""
    home = tmp_path_factory.mktemp("kubectl") / "home"
    cluster = EmbeddedCluster(home, ("--nodes", "3", "--cpus", "4", "--memory", "4Gi"))
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        _end(cluster)


def _end(cluster: EmbeddedCluster) -> None:
    process = cluster.process
    if process is not None and process.poll() is None:
        try:
            asyncio.run(cluster.end())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    asyncio.run(cleanup.remove_leftovers(cluster.home.folder))


@pytest.fixture(scope="session", params=list(PROGRAMS))
def kubectl(
    request: pytest.FixtureRequest,
    cluster: EmbeddedCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Kubectl:
    """kubectl with an empty namespace."""
    program = PROGRAMS[request.param]
    if not program:
        where = "on the path" if request.param == "current" else "named by GANGLINE_KUBECTL_OLD"
        pytest.skip(f"no kubectl {where}")
    folder = tmp_path_factory.mktemp("kubectl-home")
    kubeconfig, old = Path(cluster.home.default_kubeconfig), request.param == "1.20"
    tool = Kubectl(program, kubeconfig, folder, "old" if old else "current", old)
    tool(f"create namespace {tool.namespace}")
    until(lambda: tool.run("get", "serviceaccount", "default")[0] == 0)
    return tool


@pytest.fixture(scope="session")
def web(kubectl: Kubectl) -> Kubectl:
    """kubectl with a deployment ``web`` behind a service of the same name."""
    kubectl("apply -f -", text=WEB)
    kubectl("rollout status deployment/web --timeout=40s")
    return kubectl


@pytest.fixture(scope="session")
def talker(kubectl: Kubectl) -> Kubectl:
    """kubectl with a pod of two containers that print lines."""
    kubectl("apply -f -", text=TALKER)
    kubectl("wait pod/talker --for=condition=Ready --timeout=40s")
    return kubectl


@pytest.fixture(scope="session")
def job(kubectl: Kubectl) -> Kubectl:
    """kubectl with a PyTorchJob of one master and one worker, and a volume claim."""
    kubectl("apply -f -", text=f"{JOB}---{CLAIM}")
    kubectl("wait pytorchjob/train --for=condition=Running --timeout=40s")
    return kubectl
