"""Messages and orders of surviving workers in the store of an attempt, and a client of that store.

Messages are pushed to one queue, which the coordinator reads in the same process. Orders are a log,
which the store sends to all followers as it grows. The client speaks as much of PyTorch's protocol
as that takes (see ``agent.store``): a worker's thread waits on a connection of its own, since
PyTorch's client serves one request at a time.
"""

import socket
import struct
import threading
from typing import Final

import msgspec

from gangline.elastic.survivors.messages import Message, Order

MESSAGES_KEY: Final = b"gangline/survivors/messages"
GROUPS_NAME: Final = "gangline/groups/"
"""What the names of groups begin with in PyTorch's client, which puts a slash before each key."""
GROUPS_PREFIX: Final = f"/{GROUPS_NAME}".encode()
_VALIDATE, _PUSH = 0, 14
_MAGIC: Final = 0x3C85F7CE
FOLLOW: Final = 128
"""A request of our own: all orders from a number on, each with its length before it."""
LENGTH_BYTES: Final = 8


def _text(text: bytes) -> bytes:
    return struct.pack("=Q", len(text)) + text


def encode_push(message: Message) -> bytes:
    """Return the request that sends a message; it has no reply."""
    return bytes([_PUSH]) + _text(MESSAGES_KEY) + _text(msgspec.json.encode(message))


def encode_first(message: Message) -> bytes:
    """Return the first bytes of a connection that sends a message."""
    return struct.pack("=BI", _VALIDATE, _MAGIC) + encode_push(message)


def encode_follow(number: int) -> bytes:
    """Return the first bytes of a connection that gets all orders from a number on."""
    return struct.pack("=BIBQ", _VALIDATE, _MAGIC, FOLLOW, number)


def decode_length(data: bytes) -> int:
    """Return the length that comes before an order."""
    length: int = struct.unpack("=Q", data)[0]
    return length


def decode_message(data: bytes) -> Message:
    """Read what `encode_push` has sent."""
    message: Message = msgspec.json.decode(data, type=Message)
    return message


def decode_order(data: bytes) -> Order:
    """Read an order."""
    order: Order = msgspec.json.decode(data, type=Order)
    return order


class OrderClient:
    """A connection to the store. One thread reads orders; any thread sends messages."""

    def __init__(self, host: str, port: int, number: int) -> None:
        """Connect, and follow the orders from a number on.

        Raises:
            OSError: the store cannot be reached.
        """
        self._socket = socket.create_connection((host, port), timeout=10.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        self._sending = threading.Lock()
        self._send(encode_follow(number))

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            OSError: the store has ended.
        """
        self._send(encode_push(message))

    def read(self) -> Order:
        """Wait for the next order.

        Raises:
            OSError: the store has ended.
        """
        return decode_order(self._receive(decode_length(self._receive(LENGTH_BYTES))))

    def _send(self, data: bytes) -> None:
        with self._sending:
            self._socket.sendall(data)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the store of the workers has ended")
            data += part
        return bytes(data)
