"""A listening address that accepts connections one at a time, and counts them from then on."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from gangline.local import limits
from gangline.local.connections.handshakes import HandshakeQueue
from gangline.local.connections.peers import identify_peer
from gangline.local.connections.protocol import DeadlineProtocol
from gangline.local.connections.table import ClientConnection, ConnectionTable

log = logging.getLogger(__name__)

NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_S = 0.05
"""Seconds until the next attempt to accept when no file descriptor is left."""


class _Accepted:
    """An accepted socket, until a transport has it."""

    __slots__ = ("connection", "has_started", "has_transport", "socket")

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.connection: ClientConnection | None = None
        self.has_started = False
        """True once the client has sent something: the queue of handshakes has it."""
        self.has_transport = False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.end()
        self.socket.close()


class Listener:
    """Accepts connections with TLS: the part of ``asyncio.AbstractServer`` that a site uses.

    Between two accepted connections other work of the event loop is done.
    """

    def __init__(
        self,
        factory: Callable[[], DeadlineProtocol],
        table: ConnectionTable,
        context: ssl.SSLContext,
    ) -> None:
        self._factory = factory
        self._table = table
        self._context = context
        self._listening: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes = HandshakeQueue()

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets."""
        return self._listening

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Listen on all addresses of a host.

        Raises:
            OSError: the port is taken, or the address is not that of this machine.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        try:
            for family, address in dict.fromkeys((each[0], each[4]) for each in found):
                opened = socket.create_server(address[:2], family=family, backlog=backlog)
                opened.setblocking(False)
                self._listening.append(opened)
        except OSError:
            self.close()
            raise
        for opened in self._listening:
            self._run(self._accept_forever(opened))
        self._run(self._handshakes.run())

    def close(self) -> None:
        """Stop listening. Accepted connections continue."""
        for task in self._tasks:
            task.cancel()
        self._handshakes.clear()
        for opened in self._listening:
            opened.close()
        self._listening = []

    async def wait_closed(self) -> None:
        """Wait until no connection is being accepted."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_serving(self) -> bool:
        return bool(self._listening)

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept_forever(self, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(opened)
            except OSError as error:
                if opened.fileno() < 0:
                    return
                if error.errno in NO_DESCRIPTORS and not self._table.close_oldest():
                    log.warning("no connection can be accepted", extra={"why": str(error)})
                await asyncio.sleep(RETRY_S)
                continue
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._expect(_Accepted(accepted))

    def _expect(self, client: _Accepted) -> None:
        def release(_: object) -> None:  # also of a task that was cancelled before it began
            if not client.has_started:
                client.close()

        self._run(self._expect_client(client)).add_done_callback(release)

    def _start(self, client: _Accepted, connection: ClientConnection) -> None:
        def release(_: object) -> None:
            if not client.has_transport:
                client.close()

        self._run(self._connect(client, connection)).add_done_callback(release)

    async def _expect_client(self, client: _Accepted) -> None:
        """Wait for the first bytes of a client. Until then it takes no place in the queue."""
        accepted = client.socket

        def close() -> None:
            with contextlib.suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)

        client.connection = connection = self._table.add(identify_peer(accepted), close)
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(accepted, _set_once, readable)
        try:
            async with asyncio.timeout(limits.TLS_HANDSHAKE_TIMEOUT_S):
                await readable
            started = bool(accepted.recv(1, socket.MSG_PEEK))
        except (OSError, TimeoutError):
            started = False
        finally:
            loop.remove_reader(accepted)
        if started:
            client.has_started = True
            start = partial(self._start, client, connection)
            self._handshakes.add(connection.peer, start, client.close)

    async def _connect(self, client: _Accepted, connection: ClientConnection) -> None:
        """Complete the TLS handshake; the protocol serves the connection from then on."""
        client.has_transport = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(connection),
                client.socket,
                ssl=self._context,
                ssl_handshake_timeout=limits.TLS_HANDSHAKE_TIMEOUT_S,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            connection.end()
            if isinstance(error, asyncio.CancelledError):
                raise

    def _protocol(self, connection: ClientConnection) -> DeadlineProtocol:
        protocol = self._factory()
        protocol.client = connection
        return protocol


def _set_once(readable: "asyncio.Future[None]") -> None:
    if not readable.done():
        readable.set_result(None)
