"""TCP ports of this machine: choose a free one, and name the process that owns a taken one."""

import contextlib
import errno
import os
import socket
from pathlib import Path

from gangline.local.directory import ClusterError

LISTEN = "0A"


def choose_port(host: str, requested: int | None, preferred: tuple[int, ...]) -> int:
    """Return a port to listen on: ``requested``, else the first free ``preferred`` one, else 0.

    Raises:
        ClusterError: ``requested`` is taken or not permitted; the message names the owner.
    """
    if requested is None:
        return next((port for port in preferred if _refusal(host, port) is None), 0)
    refusal = _refusal(host, requested) if requested else None
    if refusal is None:
        return requested
    if refusal.errno == errno.EADDRINUSE:
        owner = port_owner(requested)
        raise ClusterError(
            f"port {requested} is in use{f' by {owner}' if owner else ''}; "
            "choose another with --port, or --port 0 for any"
        )
    raise ClusterError(
        f"cannot listen on {host}:{requested}: {refusal.strerror}; choose with --port"
    )


def _refusal(host: str, port: int) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None


def port_owner(port: int) -> str:
    """Name the process that listens on a port, as far as /proc is readable; empty if unknown."""
    inodes = {f"socket:[{inode}]" for inode in listening_sockets(port)}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # Ended in the meantime, or of another user.
            if any(_target(link) in inodes for link in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return ""


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def listening_sockets(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a TCP port of any address."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == LISTEN:
                found.append(fields[9])
    return found
