"""A scripted API server and a client of it."""

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from gangline.kube.client.client import ApiClient
from unit.kube.fake_server import FakeServer, connected
from unit.kube.virtual_clock import run_jumping


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


@pytest.fixture
def jumping() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a scenario without waiting for any timer in real time."""
    return run_jumping
