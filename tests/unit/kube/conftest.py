"""A scripted API server and a client of it."""

from collections.abc import AsyncIterator

import pytest

from gangline.kube.client.client import ApiClient
from unit.kube.fake_server import FakeServer, connected


@pytest.fixture
async def connection() -> AsyncIterator[tuple[FakeServer, ApiClient]]:
    async with connected() as both:
        yield both


@pytest.fixture
def server(connection: tuple[FakeServer, ApiClient]) -> FakeServer:
    return connection[0]


@pytest.fixture
def client(connection: tuple[FakeServer, ApiClient]) -> ApiClient:
    return connection[1]
