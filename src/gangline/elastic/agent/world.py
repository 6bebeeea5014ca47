"""The world of one attempt: its ranks, and where rank 0 opens the store."""

import random
import socket
from dataclasses import dataclass

STORE_PORTS = range(20_000, 32_768)
"""Ports below the range from which Linux chooses ports of outgoing connections."""


class PortsTakenError(OSError):
    """No port is free for the store of the workers."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """One attempt as this node sees it."""

    attempt: int
    """Number of restarts of the job so far; the same on all nodes."""
    group_rank: int
    """Position of this node among the nodes."""
    group_world_size: int
    first_rank: int
    """Global rank of this node's local rank 0."""
    world_size: int
    store_host: str
    store_port: int
    round: int = 0
    """Number of changes of membership."""


def free_port() -> int:
    """Return a port on which no process listens.

    Raises:
        PortsTakenError: none was found.
    """
    for port in random.sample(STORE_PORTS, 64):
        if is_port_free(port, is_lingering_free=False):
            return port
    raise PortsTakenError(f"no free port between {STORE_PORTS.start} and {STORE_PORTS.stop - 1}")


def is_port_free(port: int, *, is_lingering_free: bool = True) -> bool:
    """Return whether rank 0 could listen on the port, for all addresses as PyTorch does.

    Args:
        port: the port.
        is_lingering_free: False to treat ports with closed connections as taken.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, is_lingering_free)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
