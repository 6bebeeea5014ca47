"""A dashboard on a recorded cluster, with a client of its pages."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import CookieJar, web
from aiohttp.test_utils import TestClient, TestServer

from gangline.dashboard.actions import ActionRunner
from gangline.dashboard.login.oidc import OidcLogin
from gangline.dashboard.login.sessions import HeaderLogin, LocalLogin, Login, Sessions, TokenLogin
from gangline.dashboard.rights import Identity, Rights, Viewer
from gangline.dashboard.server import Dashboard
from gangline.dashboard.settings import DashboardSettings, LoginMode
from gangline.dashboard.sources import Sources
from gangline.kube.errors import Unreachable
from unit.dashboard.observed_state import NOW, Recorded, StubServer, example


class Server(TestServer):
    """As the product's: a handler is not cancelled when its reader goes away."""

    __test__ = False

    async def _make_runner(self, **options: Any) -> web.BaseRunner:
        return await super()._make_runner(**options | {"handler_cancellation": False})


class StubViewers:
    """Viewers whose requests all go to the stub; it keeps as whom they were sent."""

    def __init__(self, server: StubServer) -> None:
        self.server = server
        self.viewers: dict[Identity, Viewer] = {}

    async def viewer(self, identity: Identity, name: str) -> Viewer:
        client: Any = self.server
        return self.viewers.setdefault(identity, Viewer(identity, name, client, Rights(client)))


@dataclass
class EventLog:
    """Takes the events of actions."""

    events: list[tuple[str, str, str, str]] = field(default_factory=list)

    def event(self, involved: Any, type_: str, reason: str, message: str) -> None:
        self.events.append((involved.name, type_, reason, message))


@dataclass
class Site:
    """A running dashboard."""

    recorded: Recorded
    server: StubServer
    dashboard: Dashboard
    client: "TestClient[Any, Any]"
    events: EventLog
    viewers: StubViewers
    token: str = ""

    async def text(self, path: str, **headers: str) -> str:
        async with self.client.get(path, headers=headers) as answer:
            assert answer.status == 200, (path, answer.status, await answer.text())
            return await answer.text()

    async def log_in(self) -> None:
        async with self.client.get(f"/?token={self.token}") as answer:
            assert answer.status == 200

    async def csrf(self) -> str:
        text = await self.text("/")
        return text.partition('name="csrf" value="')[2].partition('"')[0]


MakeSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def make_site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeSite]:
    """Starts dashboards. The stub has no complete lists, of which the scheduler's figures are."""

    async def unreachable(*_: Any) -> None:
        raise Unreachable("only observed objects are here")

    monkeypatch.setattr("gangline.dashboard.sources.in_thread", unreachable)
    monkeypatch.setattr("gangline.dashboard.streams.INTERVAL_S", 0.01)
    monkeypatch.setattr("gangline.dashboard.streams.PAUSE_S", 0.01)
    async with AsyncExitStack() as stack:

        async def make(recorded: Recorded | None = None, **given: Any) -> Site:
            recorded = recorded or example()
            settings = DashboardSettings(**given)
            server = StubServer(recorded)
            client: Any = server
            viewers, events = StubViewers(server), EventLog()
            sessions = Sessions("session", path=settings.base_path)
            login = _login(settings, sessions, viewers)
            sources = Sources(client, recorded.cluster)
            runner = ActionRunner(events)  # type: ignore[arg-type]
            dashboard = Dashboard(settings, sources, login, runner, lambda: NOW)
            test_server = Server(dashboard.application(), host="127.0.0.1")
            browser = TestClient(test_server, cookie_jar=CookieJar(unsafe=True))
            await stack.enter_async_context(browser)
            stack.push_async_callback(dashboard.close)
            token = login.token if isinstance(login, LocalLogin) else ""
            return Site(recorded, server, dashboard, browser, events, viewers, token)

        yield make


def _login(settings: DashboardSettings, sessions: Sessions, viewers: Any) -> Login:
    shared = (sessions, viewers, settings.base_path)
    match settings.auth:
        case LoginMode.LOCAL:
            return LocalLogin(*shared, name="ann")
        case LoginMode.TOKEN:
            return TokenLogin(*shared)
        case LoginMode.HEADER:
            return HeaderLogin(*shared, settings=settings)
        case LoginMode.OIDC:
            return OidcLogin(*shared, settings=settings)


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    """A dashboard in mode ``local`` whose client has logged in."""
    made = await make_site()
    await made.log_in()
    return made
