"""Fixtures of the integration tests: a real API server in a folder of its own, and a client."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer, ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability
from integration.cluster_fixtures import cluster_of_worker, embedded_cluster, shared_cluster

__all__ = ["api_server", "client", "cluster_of_worker", "embedded_cluster", "shared_cluster"]


@pytest.fixture
async def api_server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """An embedded API server on a free port; nothing else of a cluster runs."""
    # Durability "disk" has tests of its own; the others need not wait for fsync.
    settings = ApiServerSettings(data=tmp_path / "apiserver", durability=Durability.PROCESS)
    server = ApiServer(settings)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[ApiClient]:
    """A client of ``api_server`` with all rights."""
    async with ApiClient(api_server.config, user_agent="gangline-test") as connected:
        yield connected
