"""Detached clusters: start, a failed start, and a second stop signal.

Takes 35 s: each test starts clusters of its own, and ends them.
"""

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.api.resources import PODS
from gangline.local import cleanup
from integration.cluster.embedded import EmbeddedCluster, running, until

pytestmark = pytest.mark.slow


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    """A cluster that the test starts itself."""
    found = EmbeddedCluster(tmp_path / "home")
    yield found
    found.run("down")
    if found.process is not None and found.process.poll() is None:
        found.process.kill()
        found.process.wait()
    await cleanup.remove_leftovers(found.home.folder)


def _relative(path: Path) -> str:
    """Return a path relative to the working directory, in which the command runs."""
    return os.path.relpath(path)


async def test_detached_cluster_starts_reports_status_and_stops(cluster: EmbeddedCluster) -> None:
    events = cluster.home.root / "audit.jsonl"
    options = ("--port", "0", "--nodes", "2", "--audit-log", _relative(events))
    started = await asyncio.to_thread(cluster.run, "up", "--detach", *options)
    assert started.returncode == 0, started.stderr
    note = cluster.home.read_run_record()
    assert note is not None
    asked = await asyncio.to_thread(cluster.run, "status")
    assert asked.returncode == 0, asked.stdout
    assert note.url in asked.stdout
    assert re.search(r"^Nodes: +node-1, node-2$", asked.stdout, re.MULTILINE), asked.stdout
    stopped = await asyncio.to_thread(cluster.run, "down")
    assert stopped.returncode == 0, stopped.stderr
    assert cluster.home.read_run_record() is None
    assert cluster.left_behind() == []
    assert "/api/v1/nodes" in events.read_text()
    assert (await asyncio.to_thread(cluster.run, "status")).returncode == 5


async def test_a_detached_cluster_that_cannot_start_says_why(cluster: EmbeddedCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        failed = await asyncio.to_thread(cluster.run, "up", "--detach", "--port", port)
    assert failed.returncode == 1
    assert f"port {port} is in use" in failed.stderr


async def test_restarted_cluster_uses_its_old_port(cluster: EmbeddedCluster) -> None:
    ports = []
    for _ in range(2):
        started = await asyncio.to_thread(cluster.run, "up", "--detach")
        assert started.returncode == 0, started.stderr
        note = cluster.home.read_run_record()
        assert note is not None
        ports.append(note.url)
        await asyncio.to_thread(cluster.run, "down")
    assert ports[0] == ports[1]


async def test_a_second_signal_does_not_wait_for_pods(cluster: EmbeddedCluster) -> None:
    seconds = f"{os.getpid()}.55"
    program = f"trap '' TERM; sleep {seconds} & wait; while true; do sleep 1; done"
    container = {"name": "c", "image": "none", "command": ["sh", "-c", program]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stubborn"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 3600},
    }
    await cluster.start()
    async with cluster.client() as client:
        await client.create(PODS, body, "default")

    async def runs() -> bool:
        return bool(running(f"sleep {seconds}"))

    await until(runs, explain=cluster.said)
    assert cluster.process is not None
    cluster.process.send_signal(signal.SIGINT)
    assert await cluster.end(signal.SIGINT) == 0, cluster.said()

    async def dead() -> bool:
        return not running(f"sleep {seconds}")

    await until(dead, within_s=3)
    assert cluster.left_behind() == []
