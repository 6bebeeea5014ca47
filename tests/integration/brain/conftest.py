"""A cluster of two nodes beside which a Brain of its own runs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from integration.cluster.embedded import EmbeddedCluster, embedded


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    options = ("--nodes", "2", "--network", "host", "--webhook", "off", "--no-record")
    async with embedded(tmp_path / "home", *options) as started:
        yield started
