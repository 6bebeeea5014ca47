"""HTTP connections whose requests must arrive in time, and their servers and sites."""

import asyncio

from aiohttp import web

from gangline.local import limits
from gangline.local.connections.table import ClientConnection

LINGERING_S = 2.0
"""Seconds in which a client may send the rest of a request that was already refused."""
WRITE_BUFFER_BYTES = 1 << 16
"""Unsent bytes of a connection from which on its responses wait."""


class DeadlineProtocol(web.RequestHandler):
    """HTTP, where slow requests end."""

    __slots__ = ("_header_bytes", "_header_timer", "client")

    _header_bytes: int
    _header_timer: asyncio.TimerHandle | None
    client: ClientConnection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: a connection starts. Its first request must follow soon."""
        super().connection_made(transport)
        if isinstance(transport, asyncio.WriteTransport):
            transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
            self.client.close = transport.abort
        self._header_timer = None
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """asyncio: data was received. The first bytes of a request start its timer."""
        requests = self._request_count
        super().data_received(data)
        if self._request_count > requests:
            self._stop_header_timer()
        elif data and self._waiter is not None and not self._messages:
            self._expect_headers()
            self._header_bytes += len(data)
            if self._header_bytes > limits.MAX_HEADER_BYTES:
                self._end_request()

    def connection_lost(self, exc: BaseException | None) -> None:
        """asyncio: the connection has ended."""
        self._stop_header_timer()
        self.client.end()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        if self._header_timer is None:
            self._header_bytes = 0
            self._header_timer = self._loop.call_later(limits.HEADER_TIMEOUT_S, self._end_request)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end_request(self) -> None:
        self._stop_header_timer()
        if self.transport is not None:
            self.transport.abort()


class DeadlineServer(web.Server):
    """Creates a ``DeadlineProtocol`` for each connection until shutdown."""

    protocol: type[DeadlineProtocol] = DeadlineProtocol
    _ends = False

    def pre_shutdown(self) -> None:
        """aiohttp: the server stops accepting connections."""
        self._ends = True
        super().pre_shutdown()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Accept a connection, or abort one whose TLS handshake ends after shutdown began."""
        super().connection_made(handler, transport)
        if self._ends:
            transport.abort()

    def __call__(self) -> DeadlineProtocol:
        """Return the handler of a new connection."""
        return self.protocol(self, loop=self._loop, **self._kwargs)
