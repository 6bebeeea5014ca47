"""Connections whose other end may vanish without a word, as machines that lose power do."""

import socket
from typing import Protocol

IDLE_S = 5
"""After so long without traffic the other end is asked whether it is there."""
ASK_EVERY_S = 2
ASKED = 3
GONE_AFTER_S = IDLE_S + ASKED * ASK_EVERY_S
"""So long it may be silent; TCP by itself waits a quarter of an hour."""


class Settable(Protocol):
    """A socket, or what an event loop shows of it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option."""


def notice_silence(connection: Settable) -> None:
    """Have the kernel end a TCP connection whose other end does not answer any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_S),
        (socket.TCP_KEEPINTVL, ASK_EVERY_S),
        (socket.TCP_KEEPCNT, ASKED),
        (socket.TCP_USER_TIMEOUT, GONE_AFTER_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
