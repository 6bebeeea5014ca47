"""A client with scripted failures: before a write takes effect, after it, or always."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

from gangline.api.meta.objects import Status
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.errors import NotFound, Unreachable
from gangline.kube.http.request import Request
from gangline.kube.http.transport import Transport

Fault = Callable[[Request, int], str]
"""What to do with a write, given its number: ``""``, ``before`` (it fails and has no
effect), ``after`` (it fails and has one), ``stop`` and ``hang`` (the same without an answer),
``missing`` (the server does not find what the object refers to)."""


class FaultyTransport(Transport):
    """Carries requests, some of them badly."""

    def __init__(self, config: ClusterConfig, fault: Fault) -> None:
        super().__init__(config, "gangline-test", None)
        self._fault = fault
        self.writes: list[Request] = []
        self.hanging = asyncio.Event()

    async def send(self, request: Request, **options: Any) -> bytes:
        """Send a request."""
        if request.method == "GET" or request.path.endswith("/events"):
            return await super().send(request, **options)
        self.writes.append(request)
        how = self._fault(request, len(self.writes))
        if how == "stop":
            await self._hang()
        if how == "before":
            raise Unreachable(Status(message="broken off before it was sent"))
        if how == "missing":
            raise NotFound(Status(code=404, reason="NotFound", message="roles x not found"))
        answer = await super().send(request, **options)
        if how == "after":
            raise Unreachable(Status(message="broken off before the answer came"))
        if how == "hang":
            await self._hang()
        return answer

    async def _hang(self) -> None:
        self.hanging.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def faulty(config: ClusterConfig, fault: Fault):
    """A client over such a transport, and the transport."""
    client = ApiClient(config, "gangline-test")
    transport = client.transport = FaultyTransport(config, fault)
    async with client:
        yield client, transport
