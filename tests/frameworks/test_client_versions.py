"""Clients that are not ours, each in an environment of its own, on one embedded cluster."""

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from frameworks.client_matrix import CLIENTS, check_client, interpreters
from gangline.local import cleanup
from integration.cluster.embedded import EmbeddedCluster

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    home = tmp_path_factory.mktemp("clients") / "home"
    running = EmbeddedCluster(home, ("--nodes", "1", "--cpus", "4", "--memory", "4Gi"))
    try:
        asyncio.run(running.start())
        yield running
    finally:
        process = running.process
        if process is not None and process.poll() is None:
            try:
                asyncio.run(running.end())
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        asyncio.run(cleanup.remove_leftovers(home))


@pytest.mark.parametrize("name", CLIENTS)
def test_client_does_its_steps(cluster: EmbeddedCluster, name: str) -> None:
    interpreter = interpreters().get(name)
    if interpreter is None:
        pytest.skip(f"there is no environment of {name}: run tools/client_environments.py --map")
    check_client(name, interpreter, cluster.home.default_kubeconfig, name)
