"""Viewers: who looks at the pages, with a client that sends requests with their own rights.

A viewer is known by credentials, so all sessions and streams of one user share one client and one
memory of rights. Clients that nobody has used for a while are closed.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Self

from gangline.dashboard.rights import Rights, Scope
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import ClusterConfig
from gangline.kube.config.credentials import Credential, StaticCredential
from gangline.kube.errors import Forbidden, NotFound

IDLE_S = 900.0
"""A client that was not used for this time is closed."""


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom requests are sent; all empty: as the server itself."""

    token: str = field(default="", repr=False)
    """A bearer token."""
    user: str = ""
    """The user whom the server impersonates."""
    groups: tuple[str, ...] = ()

    def config(self, server: ClusterConfig) -> ClusterConfig:
        """Return the configuration of a client with these credentials."""
        if self.token:
            credential = StaticCredential(Credential(f"Bearer {self.token}"))
            return replace(server, credentials=credential, headers=())
        if self.user:
            groups = (("Impersonate-Group", group) for group in self.groups)
            return replace(server, headers=(("Impersonate-User", self.user), *groups))
        return server


@dataclass(slots=True)
class Viewer:
    identity: Identity
    name: str
    """The name that pages and the audit log show; owners of jobs are compared with it."""
    client: ApiClient
    rights: Rights
    used_at: float = 0.0
    scope: Scope | None = None
    """What the viewer saw last."""
    scope_read_at: float = 0.0
    scope_lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Viewers:
    def __init__(self, server: ApiClient) -> None:
        self.server = server
        self._viewers: dict[Identity, Viewer] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def viewer(self, identity: Identity, name: str) -> Viewer:
        viewer = self._viewers.get(identity)
        if viewer is None:
            await self._close_idle()
            client = self.server
            if identity != Identity():
                config = identity.config(self.server.config)
                client = ApiClient(config, "gangline-dashboard", count_requests=False)
                await client.__aenter__()
                self._stack.push_async_callback(client.__aexit__, None, None, None)
            viewer = self._viewers[identity] = Viewer(identity, name, client, Rights(client))
        viewer.used_at = time.monotonic()
        return viewer

    async def _close_idle(self) -> None:
        now = time.monotonic()
        idle = [one for one in self._viewers.values() if now - one.used_at > IDLE_S]
        for viewer in idle:
            del self._viewers[viewer.identity]
            if viewer.client is not self.server:
                await asyncio.shield(viewer.client.__aexit__(None, None, None))


async def read_user_name(client: ApiClient) -> str:
    """Return the name by which the API server knows a client; empty before Kubernetes 1.28.

    Raises:
        Unauthorized: it does not accept the credentials.
    """
    try:
        return await client.user_name()
    except (NotFound, Forbidden):
        # Older servers: any request that everybody may send shows whether the token is accepted.
        await client.is_allowed(verb="get", group="", resource="namespaces")
        return ""
