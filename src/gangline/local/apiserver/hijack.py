"""Taking a connection over from the HTTP server, for protocols that are not HTTP."""

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web

HIGH_WATER = 1 << 20


class TakenOver(asyncio.Protocol):
    """A connection after its upgrade. The HTTP server learns of its end, and of nothing else."""

    def __init__(self, request: web.BaseRequest, received: Callable[[bytes], None]) -> None:
        if request.transport is None:
            raise ConnectionResetError("the client has gone")
        self.closed = asyncio.Event()
        self._received = received
        self._transport = request.transport
        self._former = request.protocol
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True

    def begin(self, headers: Mapping[str, str]) -> None:
        """Switch over and say so to the client, in this order: it may speak at once."""
        self._transport.set_protocol(self)
        lines = ["HTTP/1.1 101 Switching Protocols"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    def write(self, content: bytes) -> None:
        """Send bytes."""
        if not self._transport.is_closing():
            self._transport.write(content)

    async def drain(self) -> None:
        """Wait until the client has read most of what was sent."""
        await self._writable.wait()

    def limit(self, unread: int) -> None:
        """Stop reading while too much waits to be worked off."""
        wanted = unread < HIGH_WATER
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Close the connection when everything is sent."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes came in."""
        self._received(data)

    def pause_writing(self) -> None:
        """asyncio: the client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is gone."""
        self._writable.set()
        self.closed.set()
        self._former.connection_lost(exc)
