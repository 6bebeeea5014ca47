"""TCP ports of this machine: choice of a free one, and conflicts between pods.

Without network namespaces a port belongs to the process that opened it first on all addresses. A
pod that fails while another process listens on a port that the pod declares most likely failed for
that reason. Only an event can explain it: the program's own message names an address that seems
free.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterable

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import TERMINAL_PHASES
from gangline.api.resources import PODS
from gangline.kube.controller.event_recorder import EventRecorder
from gangline.kube.informers.informer import SharedInformerFactory
from gangline.local.directory import ClusterError


def choose_port(host: str, requested: int | None, preferred: tuple[int, ...]) -> int:
    """Return a port to listen on: ``requested``, else the first free ``preferred`` one, else 0.
    Raises ClusterError: ``requested`` is taken or not permitted; the message names the owner.
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
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
    ]


EVENT_REASON = "PortTaken"


def declared_ports(pod: Pod) -> set[int]:
    return {
        port.container_port
        for container in pod.spec.containers
        for port in container.ports
        if (port.protocol or "TCP") == "TCP"
    }


def count_failed_runs(pod: Pod | None) -> int:
    """The number of failed runs of a pod's containers, as far as its status shows them."""
    statuses = pod.status.container_statuses if pod is not None else []
    ended = [status.state.terminated for status in statuses]
    failed_now = sum(end is not None and end.exit_code != 0 for end in ended)
    return failed_now + sum(status.restart_count for status in statuses)


def explain_conflict(pod: Pod, others: Iterable[Pod], taken: Callable[[int], bool]) -> str:
    """Return a message about a declared port that another process listens on; empty if there is
    none.
    """
    clashing = sorted(port for port in declared_ports(pod) if taken(port))
    if not clashing:
        return ""
    holders = [
        f"{other.metadata.namespace}/{other.metadata.name}"
        for other in others
        if other.metadata.uid != pod.metadata.uid
        and other.status.phase not in TERMINAL_PHASES
        and declared_ports(other) & set(clashing)
    ]
    owner = f", which pod {min(holders)} declares as well," if holders else ""
    remedy = "" if os.geteuid() == 0 else ", or run gangline up as root"
    return (
        f"port {clashing[0]}{owner} is in use on this machine, whose network all pods share; "
        f"give one of them another port{remedy}"
    )


class PortConflicts:
    """Watches for failed pods in a cluster whose pods share the host's network."""

    def __init__(self, informers: SharedInformerFactory, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._pods = informers.informer(PODS)
        self._failed: asyncio.Queue[Pod] = asyncio.Queue()
        self._pods.add_listener(self._changed)

    async def run(self) -> None:
        while True:
            pod = await self._failed.get()
            pods = list(self._pods.items())
            message = await asyncio.to_thread(
                explain_conflict, pod, pods, lambda port: bool(listening_pids(port))
            )
            if message:
                self._recorder.event(pod, "Warning", EVENT_REASON, message)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if (
            old is not None
            and new is not None
            and count_failed_runs(new) > count_failed_runs(old)
            and declared_ports(new)
        ):
            self._failed.put_nowait(new)
