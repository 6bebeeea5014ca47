"""The client for programs without an event loop, such as a training script that requests shards.

It has one connection and one request at a time. Threads may share a client but wait for each other,
so use a separate client for long polls. It retries while the master is absent, like ``client``.
"""

import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Self, TypeVar

from gangline.elastic.protocol import wire
from gangline.elastic.protocol.channel import (
    MAX_FRAME_BYTES,
    JobSecret,
    SecureChannel,
    SecureChannelError,
)
from gangline.elastic.protocol.client import (
    CONNECT_TIMEOUT_S,
    MAX_RETRY_PAUSE_S,
    MIN_RETRY_PAUSE_S,
    ClientIdentity,
)
from gangline.elastic.protocol.messages import ProtocolMessage, Reply, RequestRefused, Welcome
from gangline.elastic.protocol.wire import (
    MasterUnreachableError,
    RequestRefusedError,
    enable_keepalive,
    require_reply,
)
from gangline.elastic.variables import split_address

R = TypeVar("R", bound=ProtocolMessage)

_READ_BYTES = 256 * 1024


class BlockingClient:
    """A client of one master; use as ``with BlockingClient(address, secret) as client``."""

    def __init__(self, address: str, secret: JobSecret, name: ClientIdentity | None = None) -> None:
        self.address = address
        self.name = name or ClientIdentity()
        self._secret = secret
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._channel: SecureChannel | None = None
        self._next_number = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. The next call makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._channel = None

    def call(self, message: ProtocolMessage, *, timeout_s: float = 60.0) -> Reply:
        """Send a request and return the reply; arguments and errors as in ``MasterClient``."""
        body = wire.encode_body(message)
        deadline = time.monotonic() + timeout_s
        with self._lock:
            number = self._next_number
            self._next_number += 1
            reply = self._call(number, body, deadline, timeout_s)
        if isinstance(reply, RequestRefused):
            raise RequestRefusedError(reply)
        return reply

    def ask(self, message: ProtocolMessage, kind: type[R], *, timeout_s: float = 60.0) -> R:
        """Send a request, and require one type of reply; errors as in the asynchronous client."""
        return require_reply(self.call(message, timeout_s=timeout_s), kind)

    def _call(self, number: int, body: bytes, deadline: float, timeout_s: float) -> Reply:
        pause = MIN_RETRY_PAUSE_S
        while True:
            try:
                if self._socket is None:
                    self._connect(deadline)
                return self._exchange(number, body, deadline)
            except (OSError, SecureChannelError, wire.EnvelopeError) as error:
                self.close()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise MasterUnreachableError(self.address, timeout_s, str(error)) from error
            time.sleep(min(random.uniform(pause / 2, pause), left))
            pause = min(pause * 2, MAX_RETRY_PAUSE_S)

    def _connect(self, deadline: float) -> None:
        left = max(0.001, min(CONNECT_TIMEOUT_S, deadline - time.monotonic()))
        self._socket = socket.create_connection(split_address(self.address), left)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        enable_keepalive(self._socket)
        self._channel = SecureChannel(self._secret, client=True, limit=MAX_FRAME_BYTES)
        self._socket.sendall(self._channel.output())
        while not self._channel.is_established:
            for _ in self._feed():
                raise SecureChannelError("the master sent a message before Hello")
        reply = self._exchange(0, wire.encode_body(self.name.hello()), deadline)
        if isinstance(reply, RequestRefused):
            self.close()
            raise RequestRefusedError(reply)
        if not isinstance(reply, Welcome):
            raise SecureChannelError("the master did not answer Hello with Welcome")

    def _exchange(self, number: int, body: bytes, deadline: float) -> Reply:
        assert self._socket is not None
        assert self._channel is not None
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        self._socket.sendall(self._channel.encrypt_frame(wire.wrap_body(number, body)))
        while True:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            for content in self._feed():
                answered, reply = wire.decode_reply(content)
                if answered == number:
                    return reply

    def _feed(self) -> Iterator[bytes]:
        """Receive bytes; yield the contents that they complete."""
        assert self._socket is not None
        assert self._channel is not None
        received = self._socket.recv(_READ_BYTES)
        if not received:
            raise ConnectionResetError("the master closed the connection")
        try:
            yield from self._channel.feed(received)
        finally:
            if output := self._channel.output():
                self._socket.sendall(output)
