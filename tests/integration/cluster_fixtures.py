"""The fixture of tests that need a complete cluster: ``embedded_cluster``."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from integration.cluster.embedded import EmbeddedCluster, embedded


@pytest.fixture
async def embedded_cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """Two nodes with everything that ``gangline up`` runs; quick to notice a lost node."""
    arguments = ("--nodes", "2", "--node-silence", "3", "--heartbeat", "0.5")
    async with embedded(tmp_path / "home", *arguments) as cluster:
        yield cluster
