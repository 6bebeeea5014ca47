"""HTTP endpoints for metrics and health, for Prometheus and the kubelet."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import NamedTuple

from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gangline.kube.errors import ConfigError

_Page = Callable[[web.Request], Awaitable[web.Response]]


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether it is no traceback about a malformed request, which any client can send."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


request_log = logging.getLogger(__name__)
"""Log of servers that answer anybody."""
request_log.addFilter(_is_worth_a_line)


class Address(NamedTuple):
    """A host and port to listen on."""

    host: str
    """Empty: all addresses of the machine."""
    port: int
    """0: any free port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Health:
    """The state behind the health endpoints."""

    ready: bool = False
    """Whether the component has read the cluster state and works, or stands by for the leader."""
    extra_checks: list[Callable[[], bool]] = field(default_factory=list)
    """Further conditions of readiness."""
    ports: dict[str, int] = field(default_factory=dict)
    """The port of each path, once it is served."""


@asynccontextmanager
async def serve_probes(
    metrics: Address | None, health: Address | None, state: Health
) -> AsyncIterator[None]:
    """Serve ``/metrics``, and ``/healthz`` with ``/readyz``, while the context is open.

    Raises:
        ConfigError: an address is not available.
    """
    places: dict[Address, list[str]] = {}
    for address, paths in ((metrics, ["/metrics"]), (health, ["/healthz", "/readyz"])):
        if address is not None:
            places.setdefault(address, []).extend(paths)
    async with AsyncExitStack() as stack:
        for address, paths in places.items():
            app = web.Application()
            app.add_routes([web.get(path, _page(path, state)) for path in paths])
            port = await stack.enter_async_context(
                listen(app, address, f"{' and '.join(paths)} on")
            )
            state.ports.update(dict.fromkeys(paths, port))
        yield


@asynccontextmanager
async def listen(
    app: web.Application,
    address: Address,
    purpose: str,
    *,
    tls: SSLContext | None = None,
    shutdown_s: float = 1.0,
) -> AsyncIterator[int]:
    """Serve an application while the context is open; yield its port.

    Args:
        app: the application.
        address: where it listens.
        purpose: what the address is for: the words before it in an error.
        tls: the server's certificate; None for plain HTTP.
        shutdown_s: how long requests may continue when the context ends.

    Raises:
        ConfigError: the address is not available.
    """
    runner = web.AppRunner(app, access_log=None, logger=request_log, shutdown_timeout=shutdown_s)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address.host or None, address.port, ssl_context=tls).start()
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"{purpose} {address}: {why}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _page(path: str, state: Health) -> _Page:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        if state.ready and all(holds() for holds in state.extra_checks):
            return web.Response(text="ok")
        return web.Response(text="starting", status=503)

    return {"/metrics": metrics, "/healthz": healthy, "/readyz": ready}[path]
