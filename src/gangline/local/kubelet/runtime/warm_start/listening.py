"""Whether processes of a container listen at a port, read from /proc."""

import contextlib
import os
from collections.abc import Iterator

from gangline.local.kubelet.runtime.process_tree import walk_process_tree

_LISTEN = "0A"
"""TCP_LISTEN of the kernel, in the fourth column of proc_net_tcp(5)."""


def listens_at(pid: int, port: int, shares_network: bool) -> bool:
    """Return whether a TCP port of a process's network has a listener.

    Args:
        pid: the process.
        port: the port.
        shares_network: True if other containers use the same network: the socket must belong to the
            process or a descendant then.
    """
    inodes = {*_listening_sockets(pid, "tcp", port), *_listening_sockets(pid, "tcp6", port)}
    if not shares_network:
        return bool(inodes)
    links = {f"socket:[{inode}]" for inode in inodes}
    return bool(links) and any(
        link in links for member in walk_process_tree(pid) for link in _open_files(member)
    )


def _listening_sockets(pid: int, family: str, port: int) -> Iterator[str]:
    try:
        with open(f"/proc/{pid}/net/{family}") as table:
            for line in table:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
    except OSError:
        return  # it has ended, or the kernel has no IPv6


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{number}")
