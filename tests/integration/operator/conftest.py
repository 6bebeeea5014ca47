"""Fixtures of the operator's integration tests."""

from collections.abc import AsyncIterator

import pytest

from gangline.kube.client.client import ApiClient
from integration.operator.cluster import Scene, install, scene


@pytest.fixture
async def stage(client: ApiClient) -> AsyncIterator[Scene]:
    """A cluster with our kinds and kubelets; the test starts the operator."""
    await install(client)
    async with scene(client) as ready:
        yield ready


@pytest.fixture
async def bare_stage(client: ApiClient) -> AsyncIterator[Scene]:
    """A cluster with kubelets and none of our kinds."""
    async with scene(client) as ready:
        yield ready


@pytest.fixture
async def cluster(client: ApiClient) -> ApiClient:
    """A client of a cluster with our kinds, in which nothing else runs."""
    await install(client)
    return client
