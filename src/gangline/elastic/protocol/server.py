"""The master's end of connections: authenticates clients, passes requests on, sends replies.

A request handler gives requests their meaning and answers immediately or later. A connection that
does not complete the handshake in time, sends forged frames or sends too much is cut. The same port
answers plain HTTP GET with the handler's pages (health, metrics), so that probes need no other
port.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol, cast

from gangline.elastic.protocol import wire
from gangline.elastic.protocol.channel import (
    MAGIC,
    MAX_FRAME_BYTES,
    JobSecret,
    SecureChannel,
    SecureChannelError,
)
from gangline.elastic.protocol.messages import (
    PROTOCOL_OLDEST,
    PROTOCOL_VERSION,
    Hello,
    Reply,
    Request,
    RequestRefused,
    Welcome,
)
from gangline.elastic.protocol.wire import enable_keepalive
from gangline.elastic.variables import join_address

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
MAX_UNAUTHENTICATED = 512
"""Limit of connections that are not authenticated yet; above it the oldest one is cut."""
BACKLOG = 2048
_WRITE_HIGH = 8 * 2**20
_LONGEST_HTTP_HEAD = 8192


class RequestHandler(Protocol):
    """The consumer of requests behind the server."""

    def welcome(self, peer: "Peer", hello: Hello) -> Welcome | RequestRefused:
        """Accept or refuse a connection whose sender knows the secret."""

    def handle(self, peer: "Peer", number: int, request: Request) -> None:
        """Process a request; call ``peer.send(number, reply)`` once, now or later."""

    def disconnected(self, peer: "Peer") -> None:
        """Process the end of a connection that was accepted."""

    def page(self, path: str) -> tuple[HTTPStatus, bytes]:
        """Answer an HTTP GET."""


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "MasterServer") -> None:
        self._server = server
        self._service = server.service
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._channel: SecureChannel | None = None
        self.hello: Hello | None = None
        """The client's Hello, once it is accepted."""

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's class, but have its methods.
        self._transport = transport = cast("asyncio.Transport", transport)
        enable_keepalive(transport.get_extra_info("socket"))
        transport.set_write_buffer_limits(high=_WRITE_HIGH)
        self._server.add_connection(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._server.remove_connection(self)
        if self.hello is not None:
            self._service.disconnected(self)

    def pause_writing(self) -> None:
        """Stop reading: a client that does not read replies may not send more requests."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; cut the connection if it is not authentic."""
        try:
            if self._channel is None:
                data = self._greet(data)
            if self._channel is not None and data:
                for content in self._channel.feed(data):
                    self._take(content)
                self._write(self._channel.output())
        except SecureChannelError as error:
            log.warning("connection refused", extra={"peer": self.address, "reason": str(error)})
            if self._channel is not None:
                self._write(self._channel.output())  # so that the other end can report it
            self.close()

    # Called by the request handler

    @property
    def address(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport else None
        return join_address(*name[:2]) if name else "?"

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, number: int, reply: Reply) -> None:
        """Send a reply; do nothing if the connection has ended (the client will ask again)."""
        self.send_body(number, wire.encode_body(reply))

    def send_body(self, number: int, body: bytes) -> None:
        if self._channel is not None:
            self._write(self._channel.encrypt_frame(wire.wrap_body(number, body)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Steps of a connection

    def _greet(self, data: bytes) -> bytes:
        """Find out what the client speaks; return the bytes for the secure channel."""
        self._received += data
        if self._received[:4] == b"GET ":
            self._serve_page()
            return b""
        if self._received[:4] != MAGIC[: len(self._received)]:
            raise SecureChannelError("the other end does not belong to a gangline job")
        if len(self._received) < len(MAGIC):
            return b""
        self._channel = SecureChannel(self._server.secret, client=False)
        received = bytes(self._received)
        self._received.clear()
        return received

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _take(self, content: bytes) -> None:
        try:
            number, request = wire.decode_request(content)
        except wire.EnvelopeError as error:
            self.send(error.number, RequestRefused(reason="BadRequest", message=str(error)))
            return
        if self.hello is not None:
            self._service.handle(self, number, request)
        elif isinstance(request, Hello):
            self._welcome(number, request)
        else:
            self.send(number, RequestRefused(reason="BadRequest", message="Hello must come first"))
            self.close()

    def _welcome(self, number: int, hello: Hello) -> None:
        answer = version_refusal(hello) or self._service.welcome(self, hello)
        self.send(number, answer)
        if isinstance(answer, RequestRefused):
            self.close()
            return
        assert self._channel is not None
        self._channel.limit = MAX_FRAME_BYTES
        self.hello = hello
        self._server.mark_authenticated(self)

    def _serve_page(self) -> None:
        if b"\r\n\r\n" not in self._received:
            if len(self._received) > _LONGEST_HTTP_HEAD:
                self.close()
            return
        assert self._transport is not None
        path = self._received.split(b" ", 2)[1].decode("ascii", "replace")
        self._received.clear()
        status, content = self._service.page(path)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + content)
        self.close()


def version_refusal(hello: Hello) -> RequestRefused | None:
    """Refuse a client with an incompatible protocol version; None if it is compatible."""
    if hello.protocol >= PROTOCOL_OLDEST and hello.oldest <= PROTOCOL_VERSION:
        return None
    older = "agent" if hello.protocol < PROTOCOL_OLDEST else "master"
    return RequestRefused(
        reason="VersionMismatch",
        message=f"gangline {hello.version or '?'} supports protocol {hello.oldest} to "
        f"{hello.protocol}, this master {PROTOCOL_OLDEST} to {PROTOCOL_VERSION}; "
        f"the {older}'s gangline must be newer",
    )


def negotiate_version(hello: Hello) -> int:
    return min(hello.protocol, PROTOCOL_VERSION)


class MasterServer:
    """Listens, and limits the number and duration of unauthenticated connections."""

    def __init__(self, service: RequestHandler, secret: JobSecret) -> None:
        self.service = service
        self.secret = secret
        self._unauthenticated: dict[Peer, asyncio.TimerHandle] = {}
        self._peers: set[Peer] = set()
        self._listener: asyncio.Server | None = None

    async def start(self, hosts: Sequence[str], port: int, inherited: int | None = None) -> int:
        """Listen; return the port.

        Args:
            inherited: the descriptor of a listening socket, in place of both.

        Raises:
            OSError: the port is in use, or the address does not belong to this machine.
        """
        loop = asyncio.get_running_loop()
        if inherited is not None:
            self._listener = await loop.create_server(
                lambda: Peer(self), sock=socket.socket(fileno=inherited), backlog=BACKLOG
            )
        else:
            self._listener = await loop.create_server(
                lambda: Peer(self), hosts or None, port, backlog=BACKLOG, reuse_address=True
            )
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and end all connections after sending what is buffered."""
        if self._listener is not None:
            self._listener.close()
        for peer in [*self._peers]:
            peer.close()
        for peer in [*self._unauthenticated]:
            peer.abort()
        await asyncio.sleep(0)

    # Called by connections

    def add_connection(self, peer: Peer) -> None:
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            self._unauthenticated.pop(oldest).cancel()
            oldest.abort()
        timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, peer.abort)
        self._unauthenticated[peer] = timer

    def mark_authenticated(self, peer: Peer) -> None:
        self._unauthenticated.pop(peer).cancel()
        self._peers.add(peer)

    def remove_connection(self, peer: Peer) -> None:
        self._peers.discard(peer)
        if timer := self._unauthenticated.pop(peer, None):
            timer.cancel()
