"""TCP ports of this machine: choose a free one, and name the process that owns a taken one."""

import contextlib
import errno
import socket

from gangline.local.directory import ClusterError


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
    """Name the process that listens on a port; empty if unknown, as for another user's."""
    import psutil

    for pid in filter(None, listening_pids(port)):
        with contextlib.suppress(psutil.Error):  # Ended in the meantime.
            return f"{psutil.Process(pid).name()} (process {pid})"
    return ""


def listening_pids(port: int) -> list[int | None]:
    """Return the processes that listen on a TCP port of any address; None for another user's."""
    import psutil

    return [
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    ]
