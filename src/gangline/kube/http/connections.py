"""A pool of keep-alive connections to one server, for plain requests: one request at a time each.

A request through aiohttp's client takes 2.5 times the processor time that it takes here, where only
a socket, TLS and ``ResponseParser`` are involved. In a scheduler, requests through aiohttp took as
much time as everything else together. llhttp (through httptools) parses the wire format; the parser
adds what a client of an API server needs: exactly one complete response per request, or an error.
"""

import asyncio
import contextlib
import socket
import ssl
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohappyeyeballs
import httptools

MAX_HEAD_BYTES = 1 << 16
GZIP = 16 + zlib.MAX_WBITS
"""The gzip format, as zlib's ``wbits`` argument."""


class MalformedResponse(ConnectionError):
    """The server sent something that is not a valid HTTP response."""


class HttpResponse(NamedTuple):
    """A complete response."""

    code: int
    headers: dict[str, str]
    """Headers by lower-case name; the last one counts if a header occurs several times."""
    body: bytes
    keep_alive: bool
    """Whether the connection may be used again."""

    def decompressed(self) -> bytes:
        """Return the decompressed body.

        Raises:
            MalformedResponse: it is compressed in another way than by gzip, or is incomplete.
        """
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding == "identity":
            return self.body
        if encoding != "gzip":
            raise MalformedResponse(f"the content encoding {encoding[:80]!r} is not supported")
        try:
            return zlib.decompress(self.body, wbits=GZIP)
        except zlib.error as error:
            raise MalformedResponse(f"the body cannot be decompressed: {error}") from error


class ResponseParser:
    """Parses the bytes of one response as they arrive.

    The parser calls the methods whose names begin with ``on_``.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._code = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._answer: HttpResponse | None = None
        self._more = False

    def feed(self, received: bytes) -> HttpResponse | None:
        """Parse received bytes; return the response once it is complete.

        Raises:
            MalformedResponse: the bytes are not a valid response.
        """
        try:
            self._parser.feed_data(received)
        except httptools.HttpParserUpgrade as error:
            raise MalformedResponse(
                "the server switched to a protocol that was not requested"
            ) from error
        except httptools.HttpParserCallbackError as error:
            raise MalformedResponse(str(error.__context__ or error)) from error
        except httptools.HttpParserError as error:
            if self._answer is None:
                raise MalformedResponse(f"the response is not HTTP: {error}") from error
            self._more = True
        if not self._code:
            self._count_head(received)
        if self._answer is not None:
            # Parser and reader refer to each other. Without this, a response of many megabytes
            # would stay in memory until the next garbage collection.
            del self._parser
        # A connection with unrequested data is out of step, so it is not used again.
        return (
            self._answer._replace(keep_alive=False) if self._answer and self._more else self._answer
        )

    def end(self) -> HttpResponse | None:
        """Handle the end of the connection: return the response if its body ends with the
        connection.
        """
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        if not self._code or self._answer is not None or framed:
            return None
        return HttpResponse(self._code, self._headers, b"".join(self._body), False)

    def on_message_begin(self) -> None:
        """Start a response; a second one was not requested."""
        self._more = self._answer is not None
        if not self._more:
            self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header."""
        if self._answer is not None:
            return
        self._count_head(name + value)
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        """Handle the end of the head. A 1xx response only precedes the real one."""
        encoding = self._headers.get("transfer-encoding", "chunked")
        if encoding.lower() != "chunked":
            raise MalformedResponse(f"the transfer encoding {encoding[:80]!r} is not supported")
        code = self._parser.get_status_code()
        if self._answer is None and code >= 200:
            self._code = code

    def on_body(self, body: bytes) -> None:
        """Store a part of the body."""
        if self._answer is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Build the response."""
        if self._code and self._answer is None:
            kept = self._parser.should_keep_alive()
            self._answer = HttpResponse(self._code, self._headers, b"".join(self._body), kept)

    def _count_head(self, part: bytes) -> None:
        self._head_bytes += len(part) + len(": \r\n")
        if self._head_bytes > MAX_HEAD_BYTES:
            raise MalformedResponse(f"the head of the response exceeds {MAX_HEAD_BYTES} bytes")


MAX_IDLE_S = 60.0
"""A connection that was idle for longer is not used again: many servers close it soon after that.
"""
HAPPY_EYEBALLS_DELAY_S = 0.25
"""Delay before the next address of a server is tried concurrently (happy eyeballs)."""
CLOSE_TIMEOUT_S = 1.0
CLOSING_TURNS = 3
"""Turns of the event loop in which a connection closes that was cancelled while it was set up."""

SocketFactory = Callable[[aiohappyeyeballs.AddrInfoType], socket.socket]


class NotConnected(OSError):
    """No connection to the server can be established; the cause has the reason."""


class UntrustedServer(NotConnected):
    """The certificate of the server is not trusted."""


class UpgradeRefused(OSError):
    """The server refused to upgrade the connection."""

    def __init__(self, code: int) -> None:
        super().__init__(f"refused with code {code}")
        self.code = code


class ServerAddress(NamedTuple):
    """Address of a server, and the name that its certificate must have."""

    host: str
    port: int
    name: str


def parse_server_address(address: str, name: str) -> ServerAddress | None:
    """Parse an address such as ``https://10.0.0.1:6443``; None if it contains a user."""
    parts = urlsplit(address)
    if not parts.hostname or parts.username is not None:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ServerAddress(parts.hostname, port, name or parts.hostname)


class Connection(asyncio.Protocol):
    """One connection, as a protocol of the event loop."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = ResponseParser()
        self._response: asyncio.Future[HttpResponse] | None = None
        self.closed = asyncio.get_running_loop().create_future()
        """A future that is done when the connection is closed."""
        self.idle_since = 0.0
        self._keep_open = True

    @property
    def usable(self) -> bool:
        """Whether a request may be sent, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: bytes, deadline: float) -> HttpResponse:
        """Send a request and wait for the response; on any error the connection is closed.

        Args:
            message: the bytes of the request.
            deadline: in the time of the event loop.

        Raises:
            TimeoutError: the response did not arrive in time.
            OSError: the connection broke, or the response is malformed (``NoHttp``).
        """
        if self._transport is None:
            raise ConnectionResetError("the server closed the connection")
        loop = asyncio.get_running_loop()
        self._parser = ResponseParser()
        self._response = loop.create_future()
        # A timer of the loop: ``asyncio.timeout`` costs as much as the rest of this method.
        timer = loop.call_at(deadline, self._time_out, self._response)
        try:
            self._transport.write(message)
            return await self._response
        except BaseException:
            self.close()
            raise
        finally:
            timer.cancel()
            self._response = None

    @staticmethod
    def _time_out(answer: asyncio.Future[HttpResponse]) -> None:
        if not answer.done():
            answer.set_exception(TimeoutError())

    def close(self) -> None:
        """Close the connection immediately, or as soon as it is established."""
        self._keep_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's interface without its base class.
        """Callback of the event loop: the connection is established."""
        self._transport = transport  # type: ignore[assignment]
        if not self._keep_open:
            self.close()

    def data_received(self, data: bytes) -> None:
        """Parse received data; unrequested data closes the connection."""
        waiting = self._response
        if waiting is None or waiting.done():
            return self.close()
        try:
            answer = self._parser.feed(data)
        except OSError as error:
            waiting.set_exception(error)
            return
        if answer is not None:
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete or fail the pending response."""
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)
        if self._response is None or self._response.done():
            return
        answer = self._parser.end() if exc is None else None
        if answer is not None:
            self._response.set_result(answer)
        else:
            self._response.set_exception(exc or ConnectionResetError("Server disconnected"))


class ConnectionPool:
    """A pool of connections to one server; it grows with the number of concurrent requests.

    Args:
        server: the server.
        socket_factory: makes the sockets.
        connect_timeout_s: for each connection, including TLS.
    """

    def __init__(
        self, server: ServerAddress, socket_factory: SocketFactory, connect_timeout_s: float
    ) -> None:
        self._server = server
        self._socket_factory = socket_factory
        self._connect_timeout_s = connect_timeout_s
        self._tls: ssl.SSLContext | None = None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[Any]] = set()

    async def exchange(
        self,
        message: bytes,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        before_send: Callable[[], None] = lambda: None,
    ) -> HttpResponse:
        """Send a request over an idle connection, or a new one.

        Args:
            message: the bytes of the request.
            tls: the TLS context; None for plain HTTP.
            timeout_s: the limit of the total time.
            before_send: called directly before the bytes are sent; an error prevents that.

        Raises:
            NotConnected: no connection can be established.
            OSError: the connection broke; whether the request took effect is unknown.
            TimeoutError: no connection, or no response, in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        connection = self._take_idle(tls) or await self._connect_with_timeout(tls, timeout_s)
        try:
            before_send()
        except BaseException:
            connection.close()
            raise
        answer = await connection.exchange(message, deadline)
        if answer.keep_alive and tls is self._tls:
            connection.idle_since = loop.time()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def close(self) -> None:
        """Close all connections, also those in use."""
        left = [*self._connecting, *(connection.closed for connection in self._open)]
        for connection in self._open:
            connection.close()
        if left:
            await asyncio.wait(left, timeout=CLOSE_TIMEOUT_S)
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)
        self._idle.clear()

    def _take_idle(self, tls: ssl.SSLContext | None) -> Connection | None:
        """Return the idle connection that was used last; None if there is no usable one."""
        if tls is not self._tls:
            # The client certificate has changed: connections with the old one are not used again.
            self._tls = tls
            for connection in self._idle:
                connection.close()
            self._idle.clear()
        oldest = asyncio.get_running_loop().time() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    async def _connect_with_timeout(
        self, tls: ssl.SSLContext | None, timeout_s: float
    ) -> Connection:
        try:
            async with asyncio.timeout(min(timeout_s, self._connect_timeout_s)):
                connection = await self._connect(tls)
        except TimeoutError:
            raise
        except ssl.CertificateError as error:
            raise UntrustedServer(str(error)) from error
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError in some cases
            raise NotConnected(str(error)) from error
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    async def _connect(self, tls: ssl.SSLContext | None) -> Connection:
        loop = asyncio.get_running_loop()
        host, port, name = self._server
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = await aiohappyeyeballs.start_connection(
            addresses,
            happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S,
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
        self._connecting.add(making)
        making.add_done_callback(self._connection_done)
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            # The task must not be cancelled itself: asyncio may then leak the transport, and uvloop
            # may close a descriptor that is reused already. Shutting the socket down ends it.
            connection.close()
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
            raise
        return connection

    def _connection_done(self, making: "asyncio.Task[Any]") -> None:
        self._connecting.discard(making)
        if not making.cancelled():
            making.exception()  # retrieved, so that asyncio does not log it
