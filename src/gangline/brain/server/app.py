"""Serves the HTTP API: on loopback without authentication, elsewhere with TLS and tokens."""

import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gangline.brain.server.access import LOCAL
from gangline.brain.server.routes import ASKER, MAX_BODY, BrainApi, translate_errors
from gangline.brain.settings import BadSettings
from gangline.kube.probes import Address

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_api(
    api: BrainApi, address: Address, certificate: str = "", key: str = ""
) -> AsyncIterator[int]:
    """Serve the API while the context is open; yields the port.

    Raises:
        BadSettings: the address is not available, or is not loopback and has no certificate.
    """
    local = is_loopback(address.host)
    if not local and not (certificate and key):
        raise BadSettings(
            f"--api-bind-address {address}: only loopback is served without TLS; "
            "give --tls-cert-file and --tls-key-file, or an address such as 127.0.0.1:8090"
        )
    context = _tls(certificate, key) if certificate else None

    @web.middleware
    async def authenticate(request: web.Request, handler: _Handler) -> web.StreamResponse:
        request[ASKER] = LOCAL if local else await api.access.asker(request.headers)
        return await handler(request)

    @web.middleware
    async def refuse_foreign_hosts(request: web.Request, handler: _Handler) -> web.StreamResponse:
        # A page in a browser can send requests to loopback under a name of its own (rebinding).
        host = request.url.host or ""
        if local and not is_loopback(host):
            return web.Response(status=403, text=f"the host {host[:80]!r} is not this machine")
        return await handler(request)

    app = web.Application(
        client_max_size=MAX_BODY,
        middlewares=[translate_errors, refuse_foreign_hosts, authenticate],
    )
    app.add_routes(api.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host or None, address.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            why = error.strerror or str(error)
            raise BadSettings(f"--api-bind-address {address}: {why}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadSettings(f"--tls-cert-file {certificate}: {error}") from error
    return context
