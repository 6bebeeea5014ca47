"""Starts the server: watches the cluster, opens the address, and stops both.

``run`` serves until its event is set. In mode ``local`` ``announce`` gets the address with the
token; it is called when the server answers, before the cluster has been read completely.
"""

import asyncio
import secrets
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from gangline.dashboard.actions import ActionRunner
from gangline.dashboard.login.sessions import (
    TOKEN_PARAMETER,
    HeaderLogin,
    LocalLogin,
    Login,
    Sessions,
    TokenLogin,
)
from gangline.dashboard.observed import ClusterSnapshot
from gangline.dashboard.rights import Viewers, read_user_name
from gangline.dashboard.server import Dashboard
from gangline.dashboard.settings import DashboardSettings, LoginMode
from gangline.dashboard.sources import Sources
from gangline.dashboard.watching import ClusterWatch
from gangline.kube.client.client import ApiClient
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.errors import ApiError, ConfigError
from gangline.kube.probes import Health, listen, serve_probes

COMPONENT = "gangline-dashboard"
NAME_S = 1.0
"""How long the start waits for the name of the local user, whose jobs come first."""


async def run(
    client: ApiClient,
    settings: DashboardSettings,
    stop: asyncio.Event,
    announce: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the dashboard until ``stop`` is set.

    Raises:
        ConfigError: the address is not available, or a file cannot be read.
        BadSettings: the settings contradict each other.
    """
    settings.check()
    cluster = ClusterSnapshot()
    watch = ClusterWatch(client, cluster, settings.namespaces)
    health = Health(extra_checks=[lambda: cluster.has_synced])
    async with AsyncExitStack() as stack:
        recorder = await stack.enter_async_context(EventRecorder(client, COMPONENT))
        viewers = await stack.enter_async_context(Viewers(client))
        await stack.enter_async_context(
            serve_probes(settings.metrics_bind_address, settings.health_probe_bind_address, health)
        )
        sources = Sources(client, cluster, settings.record)
        sessions = Sessions(
            f"gangline_{secrets.token_hex(4)}",  # cookies of several servers on one host differ
            path=settings.base_path,
            secure=bool(settings.tls_cert_file) or settings.auth is LoginMode.OIDC,
        )
        watching = asyncio.create_task(watch.run(), name="dashboard: watch")
        stack.push_async_callback(_cancel, watching)
        login = await _login(settings, sessions, viewers)
        dashboard = Dashboard(settings, sources, login, ActionRunner(recorder))
        port = await stack.enter_async_context(
            listen(
                dashboard.application(),
                settings.address,
                "--address: the dashboard cannot listen on",
                tls=_tls_context(settings),
            )
        )
        health.ready = True
        announce(_address(settings, port, login))
        stopping = asyncio.create_task(stop.wait())
        # A failed watch ends the server: whoever started it restarts it.
        await asyncio.wait({stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await dashboard.close()
        if watching.done():
            watching.result()


async def _login(settings: DashboardSettings, sessions: Sessions, viewers: Viewers) -> Login:
    base = settings.base_path
    match settings.auth:
        case LoginMode.LOCAL:
            name = ""
            with suppress(ApiError, TimeoutError):
                async with asyncio.timeout(NAME_S):
                    name = await read_user_name(viewers.server)
            return LocalLogin(sessions, viewers, base, name=name)
        case LoginMode.TOKEN:
            return TokenLogin(sessions, viewers, base)
        case LoginMode.HEADER:
            return HeaderLogin(sessions, viewers, base, settings=settings)
        case LoginMode.OIDC:
            from gangline.dashboard.login.oidc import OidcLogin

            return OidcLogin(sessions, viewers, base, settings=settings)


def _address(settings: DashboardSettings, port: int, login: Login) -> str:
    scheme = "https" if settings.tls_cert_file else "http"
    host = settings.address.host or "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    address = f"{scheme}://{shown}:{port}{settings.base_path}/"
    if isinstance(login, LocalLogin):
        return f"{address}?{TOKEN_PARAMETER}={login.token}"
    return address


def _tls_context(files: DashboardSettings) -> ssl.SSLContext | None:
    if not files.tls_cert_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(files.tls_cert_file, files.tls_key_file)
        if files.client_ca_file:
            context.load_verify_locations(files.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificate of the dashboard cannot be read: {error}") from error
    return context


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
