"""Taking a connection over from the HTTP server, for protocols other than HTTP."""

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web

HIGH_WATER = 1 << 20


class HijackedConnection(asyncio.Protocol):
    """A connection after its upgrade. The HTTP server is notified only of its end."""

    def __init__(self, request: web.BaseRequest, received: Callable[[bytes], None]) -> None:
        if request.transport is None:
            raise ConnectionResetError("the client has disconnected")
        self.closed = asyncio.Event()
        self._received = received
        self._transport = request.transport
        self._http_protocol = request.protocol
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True

    def switch_protocol(self, headers: Mapping[str, str]) -> None:
        """Switch the protocol, then send 101: the client may send data once it has that."""
        self._transport.set_protocol(self)
        lines = ["HTTP/1.1 101 Switching Protocols"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    def write(self, content: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(content)

    async def drain(self) -> None:
        """Wait until the client has read most of the sent data."""
        await self._writable.wait()

    def limit_reading(self, unread: int) -> None:
        """Pause reading while too many received bytes are unprocessed."""
        readable = unread < HIGH_WATER
        if readable != self._reading and not self._transport.is_closing():
            self._reading = readable
            if readable:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """asyncio: data was received."""
        self._received(data)

    def pause_writing(self) -> None:
        """asyncio: the client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection was closed."""
        self._writable.set()
        self.closed.set()
        self._http_protocol.connection_lost(exc)
