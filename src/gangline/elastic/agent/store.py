"""The key-value store of one attempt, served by the agent of rank 0's node.

Workers connect to it with PyTorch's own ``TCPStore``, as they do under torchrun: the variable
``TORCHELASTIC_USE_AGENT_STORE`` makes rank 0 a client as well. A store in rank 0 would end with
that process, and a rank that outlives it would lose its connection. The agent imports no torch, so
this is the server's side of PyTorch's protocol (``TCPStoreBackend.hpp``, ``TCPStoreLibUvBackend``).
One request is not in it: ``FOLLOW`` subscribes to the orders of ``elastic.survivors``.

A request is one byte and its arguments. Numbers have the byte order of the machine, as in PyTorch.
A text is its length (64 bits) and its bytes; a list of texts is their number and the texts.
Each attempt has a store of its own, so keys of dead workers cannot remain in it.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from gangline.elastic.survivors.orders import FOLLOW

log = logging.getLogger(__name__)

_MAGIC = 0x3C85F7CE
"""First number of every connection."""
_MAX_BYTES = 8 << 20
"""Maximum length of a key or value, as in PyTorch."""
_MAX_KEYS = 128 << 10
"""Maximum number of keys in one request, as in PyTorch."""
_BACKLOG = 4096
_NUMBERS = 1 << 63
_STOP_WAITING = _READY = b"\0"
_WAIT_CANCELED = _NOT_READY = b"\1"
_VALIDATE = 0
_PROBES_S = {socket.TCP_KEEPIDLE: 2, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 6}
"""Times of probes of a connection that is watched; one of few, and each is one small packet."""
_SILENCE_MS = 8000
"""The same time for a connection on which something was sent."""


class _IncompleteError(Exception):
    """More bytes of this request must arrive first."""


class _InvalidRequestError(Exception):
    """The peer does not speak the protocol."""


class _Arguments:
    """Reads the arguments of a request."""

    def __init__(self, data: bytearray) -> None:
        self._data, self.position = data, 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        number: int = struct.unpack(form, self._take(size))[0]
        return number

    def text(self) -> bytes:
        return self._take(self._limited(_MAX_BYTES))

    def count(self) -> int:
        return self._limited(_MAX_KEYS)

    def texts(self) -> list[bytes]:
        return [self.text() for _ in range(self.count())]

    def _limited(self, limit: int) -> int:
        number = self.number("=Q")
        if number > limit:
            raise _InvalidRequestError
        return number

    def _take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise _IncompleteError
        taken = bytes(memoryview(self._data)[self.position : end])
        self.position = end
        return taken


class AgentStore:
    """The keys of one attempt, and the connections of its workers."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._queues: dict[bytes, deque[bytes]] = {}
        self._waiting: dict[bytes, dict[StoreConnection, None]] = {}
        """Connections that wait for a key, in the order of their requests."""
        self._barriers: dict[bytes, list[StoreConnection]] = {}
        self._connections: set[StoreConnection] = set()
        self._server: asyncio.Server | None = None
        self.listeners: dict[bytes, Callable[[bytes, StoreConnection], None]] = {}
        """Receivers of what is pushed to a queue, instead of those that wait for it."""
        self._orders: list[bytes] = []
        self._followers: set[StoreConnection] = set()

    @classmethod
    async def listen(cls, port: int) -> Self:
        """Serve a new store on this port of all addresses, as PyTorch does."""
        store = cls()
        loop = asyncio.get_running_loop()
        store._server = await loop.create_server(
            lambda: StoreConnection(store), None, port, backlog=_BACKLOG
        )
        return store

    def close(self) -> None:
        if self._server:
            self._server.close()
        for connection in [*self._connections]:
            connection.abort()

    def add_connection(self, connection: "StoreConnection") -> None:
        self._connections.add(connection)

    def remove_connection(self, connection: "StoreConnection") -> None:
        self._connections.discard(connection)
        self._followers.discard(connection)
        self.cancel_wait(connection)

    def has_all(self, keys: Iterable[bytes]) -> bool:
        return all(key in self._values or self._queues.get(key) for key in keys)

    def get(self, key: bytes) -> bytes:
        """Return a value; empty if there is none, as in PyTorch."""
        return self._values.get(key, b"")

    def set(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        for connection in self._waiting.pop(key, {}):
            connection.key_arrived(key)

    def append(self, key: bytes, value: bytes) -> None:
        self.set(key, self.get(key) + value)

    def add(self, key: bytes, amount: int) -> int:
        """Add to a number, which is stored as its decimal digits."""
        try:
            total = int(self.get(key) or b"0") + amount
        except ValueError:
            raise _InvalidRequestError from None
        if not -_NUMBERS <= total < _NUMBERS:
            raise _InvalidRequestError
        self.set(key, b"%d" % total)
        return total

    def compare_set(self, key: bytes, expected: bytes, value: bytes) -> bytes:
        """Set a value if the present one is as expected; return the value to report."""
        if key not in self._values:
            if expected:
                return expected  # PyTorch reports the expected value for a key that is absent
            self.set(key, value)
        elif self._values[key] == expected:
            self.set(key, value)
        return self._values[key]

    def delete(self, key: bytes) -> int:
        return int(self._values.pop(key, None) is not None)

    def keys(self) -> Sequence[bytes]:
        return [*self._values]

    def wait(self, connection: "StoreConnection", keys: Sequence[bytes]) -> None:
        """Answer a connection when all keys have arrived."""
        missing = {key for key in keys if not self.has_all([key])}
        connection.missing = missing
        if not missing:
            connection.reply(_STOP_WAITING)
        for key in missing:
            self._waiting.setdefault(key, {})[connection] = None

    def cancel_wait(self, connection: "StoreConnection") -> None:
        for key in connection.missing:
            waiting = self._waiting.get(key, {})
            waiting.pop(connection, None)
            if not waiting:
                self._waiting.pop(key, None)
        connection.missing = set()
        for arrived in self._barriers.values():
            if connection in arrived:
                arrived.remove(connection)

    def refuse_waits(self, prefix: bytes) -> None:
        """Let connections that wait for keys with a prefix fail: the keys will never arrive."""
        keys = [key for key in self._waiting if key.startswith(prefix)]
        for connection in {one for key in keys for one in self._waiting[key]}:
            self.cancel_wait(connection)
            connection.reply(_WAIT_CANCELED)

    @property
    def order_count(self) -> int:
        return len(self._orders)

    def append_order(self, order: bytes) -> None:
        """Send an order to all followers; those that come later get it, too."""
        self._orders.append(order)
        for connection in self._followers:
            connection.reply(_text(order))

    def follow(self, connection: "StoreConnection", number: int) -> None:
        """Send all orders from a number on, and those that are still to come."""
        self._followers.add(connection)
        for order in self._orders[number:]:
            connection.reply(_text(order))

    def push(self, key: bytes, value: bytes, peer: "StoreConnection") -> None:
        """Append to a queue, and wake one connection that waits for it."""
        if listener := self.listeners.get(key):
            listener(value, peer)
            return
        self._queues.setdefault(key, deque()).append(value)
        waiting = self._waiting.get(key)
        if waiting:
            connection = next(iter(waiting))
            del waiting[connection]
            connection.key_arrived(key)

    def pop(self, key: bytes) -> tuple[int, bytes | None]:
        """Return the length of a queue, and its first value; None if it is empty."""
        queue = self._queues.get(key)
        return (len(queue), queue.popleft()) if queue else (0, None)

    def queue_length(self, key: bytes) -> int:
        return len(self._queues.get(key, ()))

    def enter_barrier(self, connection: "StoreConnection", key: bytes, size: int) -> None:
        """Answer all connections at a barrier when there are ``size`` of them."""
        arrived = self._barriers.setdefault(key, [])
        arrived.append(connection)
        if len(arrived) >= size:
            self._barriers[key] = []
            for waiting in arrived:
                waiting.reply(_STOP_WAITING)


class StoreConnection(asyncio.Protocol):
    """The connection of one process."""

    def __init__(self, store: AgentStore) -> None:
        self._store = store
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_validated = False
        self.missing: set[bytes] = set()
        """Keys for which the peer waits."""
        self._notify_lost: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._store.add_connection(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._store.remove_connection(self)
        self._notify_lost()

    def watch(self, notify_lost: Callable[[], None]) -> None:
        """Call a function when the connection ends, or its machine is silent."""
        self._notify_lost = notify_lost
        if self._transport:
            probe_silence(self._transport)

    def abort(self) -> None:
        if self._transport:
            self._transport.abort()

    def reply(self, data: bytes) -> None:
        if self._transport:
            self._transport.write(data)

    def key_arrived(self, key: bytes) -> None:
        self.missing.discard(key)
        if not self.missing:
            self.reply(_STOP_WAITING)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while self._received:
                arguments = _Arguments(self._received)
                self._handle(arguments)
                del self._received[: arguments.position]
        except _IncompleteError:
            return
        except _InvalidRequestError:
            log.debug("the store rejected a connection")
            self.abort()

    def _handle(self, arguments: _Arguments) -> None:
        command = arguments.number("=B")
        if not self._is_validated:
            if command != _VALIDATE or arguments.number("=I") != _MAGIC:
                raise _InvalidRequestError
            self._is_validated = True
            return
        handler = _HANDLERS.get(command)
        if handler is None:
            raise _InvalidRequestError
        handler(self._store, self, arguments)


def probe_silence(transport: asyncio.BaseTransport) -> None:
    """Let a connection end some seconds after its peer's machine has died."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in _PROBES_S.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)


def _number(number: int) -> bytes:
    return struct.pack("=q", number)


def _text(text: bytes) -> bytes:
    return struct.pack("=Q", len(text)) + text


def _multi_set(store: AgentStore, _: StoreConnection, read: _Arguments) -> None:
    for key, value in [(read.text(), read.text()) for _ in range(read.count())]:
        store.set(key, value)


def _cancel_wait(store: AgentStore, peer: StoreConnection, _: _Arguments) -> None:
    store.cancel_wait(peer)
    peer.reply(_WAIT_CANCELED)


def _pop(store: AgentStore, peer: StoreConnection, read: _Arguments) -> None:
    length, value = store.pop(read.text())
    peer.reply(_number(length) + (_text(value) if value is not None else b""))


def _list_keys(store: AgentStore, peer: StoreConnection, _: _Arguments) -> None:
    peer.reply(_number(len(store.keys())) + b"".join(map(_text, store.keys())))


# Each handler reads all arguments before it changes anything: an incomplete request is repeated.
_HANDLERS: dict[int, Callable[[AgentStore, StoreConnection, _Arguments], None]] = {
    1: lambda store, _, read: store.set(read.text(), read.text()),
    2: lambda store, peer, read: peer.reply(
        _text(store.compare_set(read.text(), read.text(), read.text()))
    ),
    3: lambda store, peer, read: peer.reply(_text(store.get(read.text()))),
    4: lambda store, peer, read: peer.reply(_number(store.add(read.text(), read.number("=q")))),
    5: lambda store, peer, read: peer.reply(_READY if store.has_all(read.texts()) else _NOT_READY),
    6: lambda store, peer, read: store.wait(peer, read.texts()),
    7: lambda store, peer, _: peer.reply(_number(len(store.keys()))),
    8: lambda store, peer, read: peer.reply(_number(store.delete(read.text()))),
    9: lambda store, _, read: store.append(read.text(), read.text()),
    10: lambda store, peer, read: peer.reply(b"".join(_text(store.get(k)) for k in read.texts())),
    11: _multi_set,
    12: _cancel_wait,
    13: lambda _, peer, read: peer.reply(struct.pack("=I", read.number("=I"))),
    14: lambda store, peer, read: store.push(read.text(), read.text(), peer),
    15: _pop,
    16: lambda store, peer, read: peer.reply(_number(store.queue_length(read.text()))),
    17: _list_keys,
    18: lambda store, peer, read: store.enter_barrier(peer, read.text(), read.number("=q")),
    FOLLOW: lambda store, peer, read: store.follow(peer, read.number("=Q")),
}
