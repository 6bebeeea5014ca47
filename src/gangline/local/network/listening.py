"""Which addresses of pods accept connections, by the kernel's tables of TCP sockets.

A service address must refuse connections while nothing listens behind it. A trial connection would
disturb the program that listens, the tables do not. Each network namespace has its own ones, which
a thread reads from inside.
"""

import ctypes
import os
import socket
from collections.abc import Iterable, Mapping

NEW_NETWORK = 0x40000000
LISTENING = "0A"
EVERY_ADDRESS = ("0" * 8, "0" * 32)
MAPPED = "0000000000000000FFFF0000"
"""What precedes an IPv4 address in the table of IPv6 sockets."""

SocketAddress = tuple[str, int]


def listening_addresses(
    targets: Mapping[SocketAddress, str | None],
) -> set[SocketAddress]:
    """Return the addresses at which a program listens.

    Args:
        targets: the path of the network namespace of each address; None for the host's.
    """
    found: set[SocketAddress] = set()
    for netns in set(targets.values()):
        sockets = _listening_sockets(netns)
        inside = (address for address, place in targets.items() if place == netns)
        found |= {address for address in inside if _is_open(address, sockets)}
    return found


def _is_open(address: SocketAddress, sockets: set[str]) -> bool:
    local = socket.inet_aton(address[0])[::-1].hex().upper()
    hosts = (local, MAPPED + local, *EVERY_ADDRESS)
    return any(f"{host}:{address[1]:04X}" in sockets for host in hosts)


def _listening_sockets(netns: str | None) -> set[str]:
    if netns is None:
        return set(_read_tables())
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        inside = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(inside, NEW_NETWORK):
                raise OSError(ctypes.get_errno(), f"cannot enter {netns}")
            return set(_read_tables())
        finally:
            os.close(inside)
            libc.setns(before, NEW_NETWORK)
    except OSError:
        return set()  # The pod has ended.
    finally:
        os.close(before)


def _read_tables() -> Iterable[str]:
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/thread-self/net/{table}", encoding="ascii") as lines:
                for line in lines:
                    fields = line.split(None, 4)
                    if fields[3] == LISTENING:
                        yield fields[1]
        except OSError:
            continue  # A kernel without IPv6.
