"""One fixture for "a cluster": the same scenarios run on the embedded one and on Kubernetes."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e.clusters import ClusterUnderTest, Embedded
from e2e.kubernetes_cluster import Kubernetes
from e2e.scenario import Scenario
from e2e.waiting import eventually
from gangline.api.resources import NODES
from gangline.kube.client.client import ApiClient, PatchKind
from gangline.kube.config.config import load_config

GPU = "/status/capacity/nvidia.com~1gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        choices=["embedded", "kubernetes"],
        default="embedded",
        help="where the end-to-end scenarios run",
    )
    parser.addoption(
        "--all-rights",
        action="store_true",
        help="fail if a component has a right that no scenario used: for complete runs",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--cluster")
    for item in items:
        for other in {"embedded", "kubernetes"} - {chosen}:
            if mark := item.get_closest_marker(f"{other}_only"):
                item.add_marker(pytest.mark.skip(reason=f"{other} only: {mark.args[0]}"))
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterUnderTest]:
    """The cluster of this session, started once."""
    folder = tmp_path_factory.mktemp("cluster")
    kinds = {"embedded": Embedded, "kubernetes": Kubernetes}
    chosen = kinds[request.config.getoption("--cluster")](folder)
    try:
        chosen.start()
        yield chosen
    finally:
        chosen.stop()


@pytest.fixture
async def scenario(
    cluster: ClusterUnderTest, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Scenario]:
    """A new namespace on the cluster, a client, and both components running."""
    for ended in cluster.revive():
        capture = request.config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\nstarted again before {request.node.name}: {ended}")
    async with ApiClient(load_config(str(cluster.kubeconfig))) as client:
        scenario = Scenario(cluster, client, f"e2e-{uuid.uuid4().hex[:8]}", tmp_path / "shared")
        await scenario.open()
        try:
            yield scenario
        finally:
            await scenario.close()


@pytest.fixture
async def gpus(scenario: Scenario) -> AsyncIterator[None]:
    """Six simulated GPUs of a node."""
    (node,) = (await scenario.client.list(NODES)).items

    async def say(**operation: str) -> None:
        await scenario.client.patch(
            NODES,
            node.metadata.name,
            [{"path": GPU, **operation}],
            kind=PatchKind.JSON,
            subresource="status",
        )

    await say(op="add", value="6")
    try:

        async def known() -> bool:
            return "0/6 (0.0%)" in scenario.cluster.run("top", "node").stdout

        await eventually(known, "the node's GPUs can be had")
        yield
    finally:
        await say(op="remove")
