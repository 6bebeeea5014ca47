"""Who is at the other end of a connection: an address, or a user of this machine.

All connections over loopback have the same address, so these are told apart by the user ID that
owns the socket, which the kernel reports (``sock_diag(7)``).
"""

import ipaddress
import socket
import struct

_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 20, 1
_NETLINK_SOCK_DIAG = 4
_ALL_STATES, _NO_COOKIE = 0xFFFFFFFF, 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_UID_OFFSET = _HEADER.size + 4 + 48 + 12
"""``uid`` in ``struct inet_diag_msg``, after the netlink header."""


def identify_peer(connection: socket.socket) -> str:
    """Return the identity of a TCP client: ``uid N`` over loopback, else its address.

    An IPv6 address counts as its network of 64 bits, all of which one client usually has.
    """
    try:
        peer, own = connection.getpeername(), connection.getsockname()
    except OSError:
        return "disconnected"
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        uid = _socket_uid(connection.family, peer, own)
        return str(address) if uid is None else f"uid {uid}"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _socket_uid(family: int, peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the owner of the client's socket, whose own address is ``peer``; None: unknown."""
    ports = struct.pack("!HH", peer[1], own[1])
    try:
        addresses = b"".join(
            socket.inet_pton(family, each[0].partition("%")[0]).ljust(16, b"\0")
            for each in (peer, own)
        )
        cookie = struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES)
        body += ports + addresses + cookie
        size = _HEADER.size + len(body)
        header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
            kernel.send(header + body)
            answer = kernel.recv(4096, socket.MSG_DONTWAIT)
    except (OSError, AttributeError):
        return None
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None  # an error: the client has disconnected, or the kernel has no sock_diag
    uid: int = struct.unpack_from("=I", answer, _UID_OFFSET)[0]
    return uid
