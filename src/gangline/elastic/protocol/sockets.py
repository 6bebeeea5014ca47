"""Keep-alive for connections whose other end may vanish without a FIN, such as after a power
failure.
"""

import socket
from typing import Protocol

IDLE_S = 5
"""Seconds without traffic before the first keep-alive probe."""
ASK_EVERY_S = 2
ASKED = 3
GONE_AFTER_S = IDLE_S + ASKED * ASK_EVERY_S
"""Seconds of silence after which a connection ends; TCP's own default is a quarter of an hour."""


class Settable(Protocol):
    """A socket, or what an event loop exposes of it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def notice_silence(connection: Settable) -> None:
    """Let the kernel end a TCP connection whose other end does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_S),
        (socket.TCP_KEEPINTVL, ASK_EVERY_S),
        (socket.TCP_KEEPCNT, ASKED),
        (socket.TCP_USER_TIMEOUT, GONE_AFTER_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
