"""What both ends of a connection need: keep-alive, and the installed release.

Keep-alive detects an end that vanished without a FIN, such as after a power failure. Two ends with
incompatible protocols report their releases to the user.
"""

import socket
from functools import cache
from typing import Protocol

KEEPALIVE_IDLE_S = 5
"""Seconds without traffic before the first keep-alive probe."""
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES = 3
DEAD_AFTER_S = KEEPALIVE_IDLE_S + KEEPALIVE_PROBES * KEEPALIVE_INTERVAL_S
"""Seconds of silence after which a connection ends; TCP's own default is a quarter of an hour."""


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
    """Return the version of the installed distribution; empty if there is none."""
    # The import takes some milliseconds, and only a process that connects needs it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gangline")
    except PackageNotFoundError:
        return ""
