"""Network namespaces entered by a thread, and the sockets that listen in them.

A service address must refuse connections while nothing listens behind it. A trial connection would
disturb the program that listens; the kernel's tables of TCP sockets do not.
"""

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator, Mapping

NEW_NETWORK = 0x40000000
LISTENING = "0A"
"""TCP_LISTEN of the kernel, in the fourth column of proc_net_tcp(5)."""
EVERY_ADDRESS = ("0" * 8, "0" * 32)
MAPPED = "0000000000000000FFFF0000"
"""What precedes an IPv4 address in the table of IPv6 sockets."""

SocketAddress = tuple[str, int]


@contextlib.contextmanager
def entered_network(netns: str | None) -> Iterator[None]:
    """Let the calling thread, and no other, enter a network namespace; None stays in the host's.

    The thread must leave the block before it is reused. Raises OSError: the namespace has ended.
    """
    if netns is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        inside = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_network(inside)
        finally:
            os.close(inside)
        yield
    finally:
        _set_network(own)
        os.close(own)


def _set_network(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NEW_NETWORK):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def listening_sockets(process: int | str = "thread-self") -> Iterator[tuple[str, int, str]]:
    """Yield address (in the kernel's form), port and inode of each listening TCP socket of the
    network of a process, this thread's by default.
    """
    for table in ("tcp", "tcp6"):
        # It has ended, or the kernel has no IPv6.
        with contextlib.suppress(OSError), open(f"/proc/{process}/net/{table}") as lines:
            for line in lines:
                fields = line.split(None, 10)
                if fields[3] == LISTENING:
                    address, _, port = fields[1].partition(":")
                    yield address, int(port, 16), fields[9]


def listening_addresses(targets: Mapping[SocketAddress, str | None]) -> set[SocketAddress]:
    """Return the addresses at which a program listens.

    Args:
        targets: the path of the network namespace of each address; None for the host's.
    """
    found: set[SocketAddress] = set()
    for netns in set(targets.values()):
        with contextlib.suppress(OSError), entered_network(netns):
            sockets = {(address, port) for address, port, _ in listening_sockets()}
            inside = (address for address, place in targets.items() if place == netns)
            found |= {address for address in inside if _is_open(address, sockets)}
    return found


def _is_open(address: SocketAddress, sockets: set[SocketAddress]) -> bool:
    local = socket.inet_aton(address[0])[::-1].hex().upper()
    return any((host, address[1]) in sockets for host in (local, MAPPED + local, *EVERY_ADDRESS))
