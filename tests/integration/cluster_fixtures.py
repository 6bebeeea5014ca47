"""Fixtures of tests that need a complete cluster: ``shared_cluster``, ``embedded_cluster``."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from integration.cluster.embedded import EmbeddedCluster, embedded
from integration.cluster.shared import SharedCluster


@pytest.fixture(scope="session")
def cluster_of_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    """What starts and empties the cluster behind ``shared_cluster``; tests use that."""
    shared = SharedCluster(tmp_path_factory.mktemp("shared"))
    yield shared
    asyncio.run(shared.stop())


@pytest.fixture
async def shared_cluster(cluster_of_worker: SharedCluster) -> AsyncIterator[EmbeddedCluster]:
    """Two nodes with everything that ``gangline up`` runs, and no object of another test.

    For tests that kill nothing and change no node; what they create is removed after them.
    """
    yield await cluster_of_worker.ready()
    await cluster_of_worker.clear()


@pytest.fixture
async def embedded_cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """A cluster of the test's own, with two nodes; quick to notice a lost node."""
    arguments = ("--nodes", "2", "--node-silence", "3", "--heartbeat", "0.5")
    async with embedded(tmp_path / "home", *arguments) as cluster:
        yield cluster
