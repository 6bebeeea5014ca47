"""Listening addresses of aiohttp servers, with bounds on unauthenticated connections."""

import asyncio
from typing import cast

from aiohttp import web

from gangline.local.connections.listener import Listener
from gangline.local.connections.protocol import DeadlineProtocol, DeadlineServer
from gangline.local.connections.table import ConnectionTable


class BoundedSite(web.TCPSite):
    """A listening address with TLS and a table of its connections."""

    __slots__ = ("table",)

    table: ConnectionTable

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken, or the address is not that of this machine.
        """
        await super(web.TCPSite, self).start()
        server = self._runner.server
        if not isinstance(server, DeadlineServer) or self._ssl_context is None:
            raise TypeError("the runner must have a DeadlineServer, and the site TLS")
        self.table = ConnectionTable()
        listener = Listener(server, self.table, self._ssl_context)
        self._server = cast(asyncio.AbstractServer, listener)
        await listener.start(self._host or "", self._port, self._backlog)


class BoundedAppRunner(web.AppRunner):
    """Runs an application on a ``DeadlineServer``."""

    __slots__ = ()

    async def _make_server(self) -> DeadlineServer:
        plain = await super()._make_server()
        return DeadlineServer(
            plain.request_handler,
            request_factory=plain.request_factory,
            loop=plain._loop,
            **plain._kwargs,
        )


def authenticate_connection(request: web.BaseRequest, user: str) -> int:
    """Record that a request had valid credentials: its connection counts as that of the user.

    Returns the number of the user's connections if this is the first such request of the
    connection, else 0.
    """
    protocol = request.protocol
    return protocol.client.authenticate(user) if isinstance(protocol, DeadlineProtocol) else 0
