"""Metrics and health over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from gangline.operator.settings import OperatorSettings


@dataclass(slots=True)
class Health:
    """What the probes answer."""

    ready: bool = False
    """Whether the operator knows the cluster and works, or stands by for one that does."""
    port: int | None = None
    """The port that is served, once it is."""


@asynccontextmanager
async def serve(settings: OperatorSettings, health: Health) -> AsyncIterator[None]:
    """Serve ``/metrics``, ``/healthz`` and ``/readyz`` while the context is open, if asked to."""
    if settings.port is None:
        yield
        return
    app = web.Application()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok" if health.ready else "starting", status=_code(health.ready))

    app.add_routes(
        [web.get("/metrics", metrics), web.get("/healthz", healthy), web.get("/readyz", ready)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.bind_address, settings.port)
        await site.start()
        health.port = runner.addresses[0][1]
        yield
    finally:
        await runner.cleanup()


def _code(ready: bool) -> int:
    return 200 if ready else 503
