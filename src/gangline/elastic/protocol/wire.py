"""What both ends of a connection need: framing of messages, keep-alive, the release, errors.

A message on the wire is the request's number, which its reply repeats, and the encoded message.
Keep-alive detects an end that vanished without a FIN, such as after a power failure.

ProtocolError
├── MasterUnreachableError      no reply within the timeout
└── RequestRefusedError         the master refused the request
"""

import socket
import struct
from functools import cache
from typing import Protocol, TypeVar

import msgspec

from gangline.elastic.protocol.messages import ProtocolMessage, Reply, Request, RequestRefused

_NUMBER = struct.Struct(">Q")

_encoder = msgspec.msgpack.Encoder()
_requests: "msgspec.msgpack.Decoder[Request]" = msgspec.msgpack.Decoder(Request)
_replies: "msgspec.msgpack.Decoder[Reply]" = msgspec.msgpack.Decoder(Reply)

T = TypeVar("T")
M = TypeVar("M", bound=ProtocolMessage)
KEEPALIVE_IDLE_S = 5
"""Seconds without traffic before the first keep-alive probe."""
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES = 3
DEAD_AFTER_S = KEEPALIVE_IDLE_S + KEEPALIVE_PROBES * KEEPALIVE_INTERVAL_S
"""Seconds of silence after which a connection ends; TCP's own default is a quarter of an hour."""


class EnvelopeError(Exception):
    """The content is no message that this version knows; ``number`` is its request's number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def encode_body(message: ProtocolMessage) -> bytes:
    """Encode a message without its number, so that one body can be sent to many receivers."""
    return _encoder.encode(message)


def wrap_body(number: int, body: bytes) -> bytes:
    return _NUMBER.pack(number) + body


def decode_request(content: bytes) -> tuple[int, Request]:
    return _read(content, _requests)


def decode_reply(content: bytes) -> tuple[int, Reply]:
    return _read(content, _replies)


def request_number(content: bytes) -> int:
    """Read only the number, without decoding the message."""
    if len(content) < _NUMBER.size:
        raise EnvelopeError(0, "the message has no number")
    number: int = _NUMBER.unpack_from(content)[0]
    return number


def _read(content: bytes, decoder: "msgspec.msgpack.Decoder[T]") -> tuple[int, T]:
    number = request_number(content)
    try:
        return number, decoder.decode(memoryview(content)[_NUMBER.size :])
    except msgspec.MsgspecError as error:
        raise EnvelopeError(number, str(error)) from error


class SupportsSetsockopt(Protocol):
    """A socket, or what an event loop exposes of it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def enable_keepalive(connection: SupportsSetsockopt) -> None:
    """Let the kernel end a TCP connection whose other end does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        (socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


@cache
def installed_version() -> str:
    # The import takes some milliseconds, and only a process that connects needs it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gangline")
    except PackageNotFoundError:
        return ""


class ProtocolError(Exception):
    """The master could not be reached, or refused."""


class MasterUnreachableError(ProtocolError):
    """The master did not reply within the timeout."""

    def __init__(self, address: str, waited_s: float, last_error: str) -> None:
        super().__init__(
            f"no reply from the master at {address} for {waited_s:.0f} s: {last_error}"
        )
        self.address = address
        self.last_error = last_error


class RequestRefusedError(ProtocolError):
    """The master refused the request."""

    def __init__(self, refused: RequestRefused) -> None:
        details = f": {refused.message}" if refused.message else ""
        super().__init__(f"the master refused ({refused.reason}){details}")
        self.reason = refused.reason
        """One CamelCase word; see the refusal message."""
        self.message = refused.message


def require_reply(reply: Reply, kind: type[M]) -> M:
    """Return a reply of this type. Raises RequestRefusedError: it has another type."""
    if not isinstance(reply, kind):
        problem = f"the reply is {type(reply).__name__}, expected {kind.__name__}"
        raise RequestRefusedError(RequestRefused(reason="BadReply", message=problem))
    return reply
