"""How messages lie in frames: the request's number, which its reply repeats, and the message."""

import struct
from typing import TypeVar

import msgspec

from gangline.elastic.protocol.messages import Message, Reply, Request

_NUMBER = struct.Struct(">Q")

_encoder = msgspec.msgpack.Encoder()
_requests: "msgspec.msgpack.Decoder[Request]" = msgspec.msgpack.Decoder(Request)
_replies: "msgspec.msgpack.Decoder[Reply]" = msgspec.msgpack.Decoder(Reply)

T = TypeVar("T")


class EnvelopeError(Exception):
    """What came is no message that this version knows; ``number`` is its request's number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def encode_body(message: Message) -> bytes:
    """Encode a message alone: what is the same for many receivers is encoded once."""
    return _encoder.encode(message)


def wrap(number: int, body: bytes) -> bytes:
    """Put an encoded message under its number."""
    return _NUMBER.pack(number) + body


def read_request(content: bytes) -> tuple[int, Request]:
    """Read what a client asks.

    Raises:
        EnvelopeError: it is no request that this version knows.
    """
    return _read(content, _requests)


def read_reply(content: bytes) -> tuple[int, Reply]:
    """Read what the master answers.

    Raises:
        EnvelopeError: it is no reply that this version knows.
    """
    return _read(content, _replies)


def number_of(content: bytes) -> int:
    """Read the number alone, of a message that is for somebody else to read.

    Raises:
        EnvelopeError: there is none.
    """
    if len(content) < _NUMBER.size:
        raise EnvelopeError(0, "a message without a number")
    number: int = _NUMBER.unpack_from(content)[0]
    return number


def _read(content: bytes, decoder: "msgspec.msgpack.Decoder[T]") -> tuple[int, T]:
    number = number_of(content)
    try:
        return number, decoder.decode(memoryview(content)[_NUMBER.size :])
    except msgspec.MsgspecError as error:
        raise EnvelopeError(number, str(error)) from error
