"""Connections of clients to the cluster's HTTP servers: bounds in number and in time.

A connection counts as unauthenticated from its acceptance to its first request with valid
credentials. Unauthenticated connections are bounded in total and per peer. A new connection beyond
a bound is accepted, and the oldest one of the peer with the most is closed instead: a client that
authenticates immediately is never the oldest, whatever others hold open. A peer is an address. All
connections over loopback have the same one, so these are told apart by the user ID that owns the
socket, which the kernel reports (``sock_diag(7)``).

TLS handshakes start one after the other, in turn for each peer: one takes two milliseconds of
processor time on the event loop, so hundreds that start together would delay all requests by a
second. Requests must arrive in time (``DeadlineProtocol``).
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from aiohttp import web

from gangline.local import limits

log = logging.getLogger(__name__)


class ClientConnection:
    """One connection, from its acceptance on."""

    __slots__ = ("_table", "close", "peer", "user")

    def __init__(self, table: "ConnectionTable", peer: str, close: Callable[[], None]) -> None:
        self._table = table
        self.peer = peer
        self.close = close
        """Closes the connection without waiting for its client."""
        self.user = ""
        """The user of the first authenticated request; empty before."""

    def authenticate(self, user: str) -> int:
        """Record that a request had valid credentials.

        Returns the number of the user's connections if this is the first such request, else 0.
        """
        if self.user:
            return 0
        self._table.remove(self)
        self.user = user
        self._table.users[user] += 1
        return self._table.users[user]

    def end(self) -> None:
        if not self.user:
            self._table.remove(self)
        else:
            self._table.users[self.user] -= 1
            if not self._table.users[self.user]:
                del self._table.users[self.user]


class ConnectionTable:
    """The open connections of one server."""

    def __init__(
        self,
        total: int = limits.MAX_UNAUTHENTICATED,
        per_peer: int = limits.MAX_UNAUTHENTICATED_PER_PEER,
    ) -> None:
        self._total = total
        self._per_peer = per_peer
        self._peers: dict[str, OrderedDict[ClientConnection, None]] = {}
        """Unauthenticated connections of each peer, oldest first."""
        self.unauthenticated = 0
        self.users: Counter[str] = Counter()
        """The number of authenticated connections of each user."""

    def add(self, peer: str, close: Callable[[], None]) -> ClientConnection:
        """Add a new connection. Closes an older unauthenticated one if there are too many."""
        connection = ClientConnection(self, peer, close)
        own = self._peers.setdefault(peer, OrderedDict())
        own[connection] = None
        self.unauthenticated += 1
        if len(own) > self._per_peer:
            self._close_oldest(peer)
        elif self.unauthenticated > self._total:
            self._close_oldest(max(self._peers, key=lambda name: len(self._peers[name])))
        return connection

    def close_oldest(self) -> bool:
        """Close an unauthenticated connection, if there is one: no descriptor is left."""
        if not self._peers:
            return False
        self._close_oldest(max(self._peers, key=lambda name: len(self._peers[name])))
        return True

    def _close_oldest(self, peer: str) -> None:
        oldest = next(iter(self._peers[peer]))
        self.remove(oldest)
        oldest.close()

    def remove(self, connection: ClientConnection) -> None:
        own = self._peers.get(connection.peer)
        if own is not None and connection in own:
            del own[connection]
            self.unauthenticated -= 1
            if not own:
                del self._peers[connection.peer]


_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
_NETLINK_SOCK_DIAG = 4
_ALL_STATES, _NO_COOKIE = 0xFFFFFFFF, 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_UID_OFFSET = _HEADER.size + 4 + 48 + 12
"""``uid`` in ``struct inet_diag_msg``, after the netlink header."""


def identify_peer(connection: socket.socket) -> str:
    """Return the identity of a TCP client: ``uid N`` over loopback, else its address.

    An IPv6 address counts as its network of 64 bits, all of which one client usually has.
    """
    try:
        peer, own = connection.getpeername(), connection.getsockname()
    except OSError:
        return "disconnected"
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        uid = _socket_uid(connection.family, peer, own)
        return str(address) if uid is None else f"uid {uid}"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _socket_uid(family: int, peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the owner of the client's socket, whose own address is ``peer``; None: unknown."""
    ports = struct.pack("!HH", peer[1], own[1])
    try:
        addresses = b"".join(
            socket.inet_pton(family, address[0].partition("%")[0]).ljust(16, b"\0")
            for address in (peer, own)
        )
        cookie = struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES)
        body += ports + addresses + cookie
        size = _HEADER.size + len(body)
        header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.send(header + body)
            answer = kernel.recv(4096, socket.MSG_DONTWAIT)
    except (OSError, AttributeError):
        return None
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None  # an error: the client has disconnected, or the kernel has no sock_diag
    uid: int = struct.unpack_from("=I", answer, _UID_OFFSET)[0]
    return uid


PAUSE_S = 0.001
"""Seconds between two handshakes, in which requests are served."""


class HandshakeQueue:
    """Clients whose first bytes have arrived, by peer."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._filled = asyncio.Event()

    async def wait_turn(self, peer: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        self._filled.set()
        await turn

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            peer, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[peer] = turns  # at the end: the other peers come first
            if not self._waiting:
                self._filled.clear()
            if not turn.done():
                turn.set_result(None)
                await asyncio.sleep(PAUSE_S)


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
        self._ends = True
        super().pre_shutdown()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Accept a connection, or abort one whose TLS handshake ends after shutdown began."""
        super().connection_made(handler, transport)
        if self._ends:
            transport.abort()

    def __call__(self) -> DeadlineProtocol:
        return self.protocol(self, loop=self._loop, **self._kwargs)


NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_S = 0.05
"""Seconds until the next attempt to accept when no file descriptor is left."""


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
        self._unstarted: set[ClientConnection] = set()
        """Connections whose sockets no transport has yet."""

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return self._listening

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Listen on all addresses of a host. Raises OSError: the port is taken, or the address is
        not that of this machine.
        """
        loop = asyncio.get_running_loop()
        resolved = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        try:
            for family, address in dict.fromkeys((result[0], result[4]) for result in resolved):
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
        for opened in self._listening:
            opened.close()
        self._listening = []

    async def wait_closed(self) -> None:
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
            self._serve(accepted)

    def _serve(self, accepted: socket.socket) -> None:
        def close() -> None:
            with contextlib.suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)

        def release(_: object) -> None:  # also of a task that was cancelled before it began
            if connection in self._unstarted:
                self._unstarted.remove(connection)
                connection.end()
                accepted.close()

        connection = self._table.add(identify_peer(accepted), close)
        self._unstarted.add(connection)
        self._run(self._connect(accepted, connection)).add_done_callback(release)

    async def _connect(self, accepted: socket.socket, connection: ClientConnection) -> None:
        """Complete the TLS handshake; the protocol serves the connection from then on."""
        if not await _has_sent(accepted):
            return
        await self._handshakes.wait_turn(connection.peer)
        self._unstarted.remove(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(connection),
                accepted,
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


async def _has_sent(accepted: socket.socket) -> bool:
    """Wait for the first bytes of a client. Until then it takes no place in the queue."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        async with asyncio.timeout(limits.TLS_HANDSHAKE_TIMEOUT_S):
            await readable.wait()
        return bool(accepted.recv(1, socket.MSG_PEEK))
    except (OSError, TimeoutError):
        return False
    finally:
        loop.remove_reader(accepted)


class BoundedSite(web.TCPSite):
    """A listening address with TLS and a table of its connections."""

    __slots__ = ("table",)

    table: ConnectionTable

    async def start(self) -> None:
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
