"""A cluster in the background: start it detached, query its status, stop it."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gangline.kube.config.embedded import RunRecord
from gangline.local import cleanup
from gangline.local.directory import (
    ClusterAlreadyRunning,
    ClusterDirectory,
    ClusterError,
    ClusterNotRunning,
)
from gangline.local.settings import ClusterSettings

READY_FD = "GANGLINE_READY_FD"
"""The environment variable with the descriptor of the pipe on which a detached cluster reports
readiness.
"""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
_NODES_POLL_S = 0.1
LOG_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    name: str
    folder: Path
    running: bool
    pid: int = 0
    url: str = ""
    since: datetime | None = None
    kubeconfig: Path = Path()
    reachable: bool = False
    """True if the API server answered; ``nodes`` and ``pods`` are known only then."""

    nodes: tuple[tuple[str, bool], ...] = ()
    """The name of each node and whether it is ready."""

    pods: tuple[tuple[str, int], ...] = ()
    """The number of pods in each phase."""


def start_detached(settings: ClusterSettings, command: Sequence[str]) -> RunRecord:
    """Run ``command`` in the background; it must run the cluster in the foreground.

    Returns when the API server answers. The output of the cluster goes to its log file. Raises
    ClusterError: it did not start; the message holds the last lines of its output.
    """
    cluster = settings.directory
    cluster.prepare()
    if (note := cluster.read_run_record()) is not None:
        raise ClusterAlreadyRunning(cluster.name, f"by process {note.pid} at {note.url}")
    reading, writing = os.pipe()
    try:
        with cluster.log.open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                env={**os.environ, READY_FD: str(writing)},
                start_new_session=True,
            )
        os.close(writing)
        if _wait_ready(reading) and (note := cluster.read_run_record()) is not None:
            process.returncode = 0  # It outlives this process on purpose: no ResourceWarning.
            return note
    finally:
        os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    raise ClusterError(f"cluster {cluster.name} did not start:\n{_tail(cluster.log, begin)}")


def _wait_ready(reading: int) -> bool:
    """Wait for the readiness byte; if the new process ends first, the pipe is closed without it."""
    readable, _, _ = select.select([reading], [], [], START_TIMEOUT_S)
    return bool(readable) and os.read(reading, 1) != b""


def report_ready() -> None:
    """Report to the process that started this one detached that the API server answers."""
    descriptor = os.environ.pop(READY_FD, "")
    if descriptor.isdigit():
        with contextlib.suppress(OSError):
            os.write(int(descriptor), b"r")
            os.close(int(descriptor))


def wait_nodes_ready(cluster: ClusterDirectory, count: int) -> bool:
    """Wait until ``count`` nodes are ready, at most ``START_TIMEOUT_S``; return whether they are.
    Raises ClusterError: the cluster ended meanwhile.
    """

    async def wait() -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    status = await cluster_status(cluster)
                    if not status.running:
                        raise ClusterError(
                            f"cluster {cluster.name} ended; its log is {cluster.log}"
                        )
                    if sum(ready for _, ready in status.nodes) >= count:
                        return True
                    await asyncio.sleep(_NODES_POLL_S)
        return False

    return asyncio.run(wait())


def _tail(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_TAIL_LINES:]) or "(no output)"


async def cluster_status(cluster: ClusterDirectory) -> ClusterStatus:
    """Return the status of a cluster, also of one whose API server does not answer."""
    note = cluster.read_run_record()
    if note is None:
        return ClusterStatus(cluster.name, cluster.folder, running=False)
    status = ClusterStatus(
        cluster.name,
        cluster.folder,
        running=True,
        pid=note.pid,
        url=note.url,
        since=note.since,
        kubeconfig=cluster.kubeconfig,
    )
    return await _query_api_server(status)


async def _query_api_server(status: ClusterStatus) -> ClusterStatus:
    # Imported here: only this function queries the cluster, and a start should not load them.
    import dataclasses

    from gangline.api.meta.conditions import is_condition_true
    from gangline.api.resources import NODES, PODS
    from gangline.kube.client.client import ApiClient
    from gangline.kube.config.config import load_config
    from gangline.kube.errors import KubeError

    try:
        async with asyncio.timeout(5.0), ApiClient(load_config(str(status.kubeconfig))) as client:
            nodes = (await client.list(NODES)).items
            pods = (await client.list(PODS)).items
    except (KubeError, TimeoutError):
        return status
    phases = Counter(pod.status.phase or "Pending" for pod in pods)
    ready = (
        (node.metadata.name, is_condition_true(node.status.conditions, "Ready")) for node in nodes
    )
    return dataclasses.replace(
        status, reachable=True, nodes=tuple(sorted(ready)), pods=tuple(sorted(phases.items()))
    )


def stop_cluster(cluster: ClusterDirectory) -> RunRecord | None:
    """Stop a cluster and clean up after it; None if it did not run. Raises ClusterError: there is
    no such cluster, or it belongs to another user.
    """
    if not cluster.folder.is_dir():
        raise ClusterNotRunning(f"there is no cluster {cluster.name} in {cluster.root}")
    note = cluster.read_run_record()
    if note is not None:
        _terminate(note)
    asyncio.run(cleanup.remove_leftovers(cluster.folder))
    return note


def _terminate(note: RunRecord) -> None:
    """Send SIGTERM, then SIGKILL; the pidfd and the start time rule out another process with this
    pid.
    """
    try:
        handle = os.pidfd_open(note.pid)
    except ProcessLookupError:
        return
    try:
        if not note.is_alive:
            return
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not _wait_exit(handle, STOP_TIMEOUT_S):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            _wait_exit(handle, STOP_TIMEOUT_S)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise ClusterError(f"process {note.pid} belongs to another user: {error}") from error
    finally:
        os.close(handle)


def _wait_exit(handle: int, within_s: float) -> bool:
    readable, _, _ = select.select([handle], [], [], within_s)
    return bool(readable)
