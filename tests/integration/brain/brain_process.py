"""A Brain in a process of its own, beside an embedded cluster."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from gangline.api.resources import CONFIG_MAPS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import NotFound
from gangline.sdk.advice import BRAIN_CONFIG_MAP, BrainClient, BrainUnavailable
from integration.cluster.embedded import EmbeddedCluster, until

STOPS_WITHIN_S = 30.0


@dataclass
class BrainProcess:
    """One Brain that a test may kill, stop and start again."""

    cluster: EmbeddedCluster
    database: Path
    log: Path
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        options = ("--interval", "0.2", "--usage-interval", "0.2", "--log-level", "info")
        command = [sys.executable, "-m", "gangline", "brain", *options, *self.arguments]
        command += ["--database", f"sqlite:///{self.database}"]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                env=self.cluster.environment,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        """Whether the process has been stopped by a signal and not continued since."""
        assert self.process is not None
        return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, STOPS_WITHIN_S)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@contextmanager
def brain_process(
    cluster: EmbeddedCluster, folder: Path, name: str = "brain", *arguments: str
) -> Iterator[BrainProcess]:
    """Run a Brain on the database of ``folder``; it is killed at the end if it still runs."""
    brain = BrainProcess(cluster, folder / "brain.db", folder / f"{name}.log", arguments)
    brain.start()
    try:
        yield brain
    finally:
        if brain.process is not None and brain.process.poll() is None:
            brain.process.kill()
            brain.process.wait()


async def brain_url(client: ApiClient, brain: BrainProcess, namespace: str = "kube-system") -> str:
    """Wait until this Brain has published its address, and return it."""

    async def published() -> str:
        try:
            found = await client.get(CONFIG_MAPS, BRAIN_CONFIG_MAP, namespace)
        except NotFound:
            return ""
        url = found.data["url"]
        return url if f"port={url.rpartition(':')[2]}" in brain.said() else ""

    return await until(published, 60.0, brain.said)


def waiting_connections(port: int) -> int:
    """Return how many connections to a listening port its process has not accepted yet.

    A connection that the caller has closed meanwhile counts. Source: proc(5), the receive queue of
    a listening socket in ``/proc/net/tcp``.
    """
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    queues = [
        int(row[4].partition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
    ]
    assert queues, f"no socket listens at port {port}"
    return sum(queues)


async def stored_run(url: str, job: str, namespace: str = "default") -> dict[str, Any]:
    """Return a job of the history; empty while there is none."""
    try:
        async with BrainClient(url) as brain:
            return await brain.run(namespace, job)
    except BrainUnavailable:
        return {}
