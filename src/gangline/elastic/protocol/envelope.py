"""Framing of messages: the request's number, which its reply repeats, and the encoded message."""

import struct
from typing import TypeVar

import msgspec

from gangline.elastic.protocol.messages import ProtocolMessage, Reply, Request

_NUMBER = struct.Struct(">Q")

_encoder = msgspec.msgpack.Encoder()
_requests: "msgspec.msgpack.Decoder[Request]" = msgspec.msgpack.Decoder(Request)
_replies: "msgspec.msgpack.Decoder[Reply]" = msgspec.msgpack.Decoder(Reply)

T = TypeVar("T")


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
    """Decode a request.

    Raises:
        EnvelopeError: it is no request that this version knows.
    """
    return _read(content, _requests)


def decode_reply(content: bytes) -> tuple[int, Reply]:
    """Decode a reply.

    Raises:
        EnvelopeError: it is no reply that this version knows.
    """
    return _read(content, _replies)


def request_number(content: bytes) -> int:
    """Read only the number, without decoding the message.

    Raises:
        EnvelopeError: there is none.
    """
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
