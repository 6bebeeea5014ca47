"""The check of nodes before training: a process of it is killed, a node is slow."""

import asyncio
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from gangline.api.failure import NODE_FAULT
from gangline.elastic.protocol.client import Client
from gangline.elastic.protocol.messages import JobEvent, Status, StatusWanted
from gangline.elastic.protocol.seal import secret_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S = 120.0
SECRET = "00" * 32
SLOW = """
import os
import sys
if sys.orig_argv[1:3] == ["-m", "gangline.elastic.nodecheck.worker"]:
    import gangline.elastic.nodecheck.worker as worker
    quick = worker.Tester.compute
    worker.Tester.compute = lambda self: quick(self) + 5.0
    sys.argv = sys.orig_argv[2:]
    worker.main()
    os._exit(0)
"""
"""Imported by every interpreter that finds it: the checking one is made slow."""


TRAINS = """
import os
import sys
import time
print("trains in", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


async def events(address: str) -> tuple[JobEvent, ...]:
    """Ask the master what has happened."""
    async with Client(address, secret_of({"GANGLINE_JOB_SECRET": SECRET}, "job")) as client:
        return (await client.ask(StatusWanted(), Status)).events


def check_process(parent: int) -> int:
    """Wait for the process with which a launcher checks its node."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = path.with_name("cmdline").read_text()
                mine = int(path.read_text().rpartition(")")[2].split()[1]) == parent
            except OSError:
                continue
            if mine and "nodecheck.worker" in words:
                return int(path.parent.name)
    raise AssertionError("no process checks the node")


def test_a_check_process_that_is_killed_is_forgiven_and_a_slow_node_leaves(
    launch, script, tmp_path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path, end = script(TRAINS), tmp_path / "end"
    (tmp_path / "slow").mkdir()
    script(SLOW, "slow/sitecustomize.py")

    def node(rank: int, **environment: str):
        return launch(
            "--nnodes", "2:3", "--node-rank", rank, "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job", "--no-standby",
            "--rdzv-conf", f"is_host={int(not rank)},last_call_timeout=1000",
            "--network-check", "--exclude-straggler", "--check-timeout", "15",
            "--straggler-ratio", "100000", "--straggler-seconds", "4", path, end,
            GANGLINE_JOB_SECRET=SECRET, **environment,
        )  # fmt: skip

    healthy = [node(0), node(1)]
    slow = node(2, PYTHONPATH=str(tmp_path / "slow"))
    os.kill(check_process(healthy[1].process.pid), signal.SIGKILL)
    assert slow.wait() == NODE_FAULT, slow.output
    assert "this node is slow: node 2 failed compute" in slow.output
    for run in healthy:
        run.until("trains in 2")  # the last call would be long: nobody waits for who has left
    (told,) = [one for one in asyncio.run(events(f"127.0.0.1:{port}")) if one.reason == "NodeLeft"]
    assert told.node_id == 2
    assert told.message.startswith("this node is slow: node 2 failed compute")
    end.touch()
    assert [run.wait() for run in healthy] == [0, 0], healthy[0].output + healthy[1].output
    for run in healthy:
        assert "node check: node 2 is slow" in run.output
