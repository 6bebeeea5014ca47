"""One running cluster for all kubectl tests; each kubectl has its own namespace."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local import cleanup
from integration.cluster.embedded import EmbeddedCluster
from integration.kubectl.manifests import CLAIM, JOB, TALKER, WEB
from integration.kubectl.tool import Kubectl, until
from kubectl_versions import NEWEST, OLD, PROGRAMS, missing_reason

HERE = Path(__file__).parent
ALL_VERSIONS_RUN = ("test_kubectl_workloads.py", "test_kubectl_writes.py")
"""What clients write differs most between versions. Other tests run with the oldest and newest."""
NEWEST_HERE = next((version for version in reversed(PROGRAMS) if PROGRAMS[version]), NEWEST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _runs_with_its_version(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _runs_with_its_version(item)]


def _runs_with_its_version(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    version = callspec.params.get("kubectl") if callspec else None
    if item.path.parent != HERE or version in (None, OLD, NEWEST_HERE):
        return True
    return item.path.name in ALL_VERSIONS_RUN


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
        pytest.skip(missing_reason(request.param))
    folder = tmp_path_factory.mktemp("kubectl-home")
    kubeconfig, old = Path(cluster.home.default_kubeconfig), request.param == OLD
    tool = Kubectl(program, kubeconfig, folder, f"v{request.param.replace('.', '-')}", old)
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
