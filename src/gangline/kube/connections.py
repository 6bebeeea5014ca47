"""Kept-alive connections to one server for plain requests: one at a time on each.

Through aiohttp's client a request costs two and a half times the processor time that it costs here,
where there is nothing but a socket, TLS and ``AnswerReader``; a scheduler spent as much on requests
as on all else together.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohappyeyeballs

from gangline.kube.answer import Answer, AnswerReader

MAX_IDLE_S = 60.0
"""A connection that rested longer is not used again: many servers hang up soon after that."""
SECOND_ADDRESS_AFTER_S = 0.25
"""Of a server with several addresses, the next one is tried beside the last after this time."""
CLOSE_TIMEOUT_S = 1.0
CLOSING_LAYERS = 3
"""A connection that was given up while it came about closes in so many turns of the event loop."""

SocketFactory = Callable[[aiohappyeyeballs.AddrInfoType], socket.socket]


class NotConnected(OSError):
    """There is no way to the server; the cause says why."""


class Untrusted(NotConnected):
    """The server does not prove who it is."""


class Refused(OSError):
    """The server does not want to speak otherwise than by plain requests."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused with code {code}")
        self.code = code


class Server(NamedTuple):
    """Where a server listens, and the name that its certificate is to bear."""

    host: str
    port: int
    name: str


def server_of(address: str, name: str) -> Server | None:
    """The server at an address such as ``https://10.0.0.1:6443``; None if it names a user too."""
    parts = urlsplit(address)
    if not parts.hostname or parts.username is not None:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Server(parts.hostname, port, name or parts.hostname)


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._answer: asyncio.Future[Answer] | None = None
        self.lost = asyncio.get_running_loop().create_future()
        """Done when the connection is closed."""
        self.rests_since = 0.0
        self._wanted = True

    @property
    def usable(self) -> bool:
        """Whether a request may be sent, as far as can be told."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, message: bytes, deadline: float) -> Answer:
        """Send a request and wait for its answer; whatever goes wrong, the connection is closed.

        Args:
            message: the bytes of the request.
            deadline: when to give up, by the clock of the event loop.

        Raises:
            TimeoutError: the answer did not come in time.
            OSError: the connection broke, or what came is no answer (``NoHttp``).
        """
        if self._transport is None:
            raise ConnectionResetError("the server has hung up")
        loop = asyncio.get_running_loop()
        self._reader = AnswerReader()
        self._answer = loop.create_future()
        # A timer of the loop, as ``asyncio.timeout`` costs as much as all that is done here.
        timer = loop.call_at(deadline, self._give_up, self._answer)
        try:
            self._transport.write(message)
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._answer = None

    @staticmethod
    def _give_up(answer: asyncio.Future[Answer]) -> None:
        if not answer.done():
            answer.set_exception(TimeoutError())

    def close(self) -> None:
        """Close the connection at once, or as soon as it is made."""
        self._wanted = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport: called by the event loop, as are those that follow."""
        # uvloop's transports are none of asyncio's class, though they do the same.
        self._transport = transport  # type: ignore[assignment]
        if not self._wanted:
            self.close()

    def data_received(self, data: bytes) -> None:
        """Take what the server sent; unasked, it is the end of the connection."""
        waiting = self._answer
        if waiting is None or waiting.done():
            return self.close()
        try:
            answer = self._reader.feed(data)
        except OSError as error:
            waiting.set_exception(error)
            return
        if answer is not None:
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits for an answer."""
        self._transport = None
        if not self.lost.done():
            self.lost.set_result(None)
        if self._answer is None or self._answer.done():
            return
        answer = self._reader.end() if exc is None else None
        if answer is not None:
            self._answer.set_result(answer)
        else:
            self._answer.set_exception(exc or ConnectionResetError("Server disconnected"))


class Connections:
    """All connections to one server; as many as there are requests at one time.

    Args:
        server: whom to connect to.
        socket_factory: makes the sockets.
        connect_timeout_s: for each connection, TLS included.
    """

    def __init__(
        self, server: Server, socket_factory: SocketFactory, connect_timeout_s: float
    ) -> None:
        self._server = server
        self._socket_factory = socket_factory
        self._connect_timeout_s = connect_timeout_s
        self._tls: ssl.SSLContext | None = None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._making: set[asyncio.Task[Any]] = set()

    async def ask(self, message: bytes, tls: ssl.SSLContext | None, timeout_s: float) -> Answer:
        """Send a request over a connection that is free, or a new one.

        Raises:
            NotConnected: there is no connection to be had.
            OSError: the connection broke off; what became of the request is unknown.
            TimeoutError: no connection came about in time, or no answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = self._rested(tls) or await self._connected(tls, timeout_s)
        answer = await connection.ask(message, deadline)
        if answer.kept and tls is self._tls:
            connection.rests_since = loop.time()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def close(self) -> None:
        """Close all connections, also those in use."""
        left = [*self._making, *(connection.lost for connection in self._open)]
        for connection in self._open:
            connection.close()
        if left:
            await asyncio.wait(left, timeout=CLOSE_TIMEOUT_S)
        for _ in range(CLOSING_LAYERS):
            await asyncio.sleep(0)
        self._idle.clear()

    def _rested(self, tls: ssl.SSLContext | None) -> Connection | None:
        """The connection that was used last, if it is still good."""
        if tls is not self._tls:
            # The certificate that we show has changed: who saw the old one is not asked again.
            self._tls = tls
            for connection in self._idle:
                connection.close()
            self._idle.clear()
        oldest = asyncio.get_running_loop().time() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.rests_since >= oldest:
                return connection
            connection.close()
        return None

    async def _connected(self, tls: ssl.SSLContext | None, timeout_s: float) -> Connection:
        try:
            async with asyncio.timeout(min(timeout_s, self._connect_timeout_s)):
                connection = await self._connect(tls)
        except TimeoutError:
            raise
        except ssl.CertificateError as error:
            raise Untrusted(str(error)) from error
        except (OSError, RuntimeError) as error:  # uvloop has the latter for some of the former
            raise NotConnected(str(error)) from error
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    async def _connect(self, tls: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        host, port, name = self._server
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = await aiohappyeyeballs.start_connection(
            addresses,
            happy_eyeballs_delay=SECOND_ADDRESS_AFTER_S,
            interleave=1,
            loop=loop,
            socket_factory=self._socket_factory,
        )
        connection = Connection()
        making = loop.create_task(
            loop.create_connection(
                lambda: connection,
                sock=made,
                ssl=tls,
                server_hostname=name if tls else None,
                ssl_handshake_timeout=self._connect_timeout_s if tls else None,
            )
        )
        self._making.add(making)
        making.add_done_callback(self._made)
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            # Cancelled itself, a loop may forget the transport (asyncio), or close its socket while
            # the number is another's already (uvloop). So its end is brought about from without.
            connection.close()
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
            raise
        return connection

    def _made(self, making: "asyncio.Task[Any]") -> None:
        self._making.discard(making)
        if not making.cancelled():
            making.exception()  # whoever still waits has it too
