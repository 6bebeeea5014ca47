"""The node check before training: a killed process, a slow node, a dead agent."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from gangline.api.failure import NODE_FAULT_EXIT_CODE
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import JobEvent, JobStatusReply, JobStatusRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_S = 120.0
SECRET = "00" * 32
SLOW = """
import gangline.elastic.nodecheck.worker as worker
quick = worker.Tester.compute
worker.Tester.compute = lambda self: quick(self) + 5.0
"""
"""Imported by every interpreter that finds it: the checking one is made slow."""


TRAINS = """
import sys
early = "torch" in sys.modules
import os
import time
import torch
print(f"trains in {os.environ['WORLD_SIZE']}, imported before: {early}\\n", end="", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


async def events(address: str) -> tuple[JobEvent, ...]:
    """Ask the master what has happened."""
    async with MasterClient(
        address, read_job_secret({"GANGLINE_JOB_SECRET": SECRET}, "job")
    ) as client:
        return (await client.ask(JobStatusRequest(), JobStatusReply)).events


def parents() -> dict[int, int]:
    """Return the parent of each process of this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def check_process(launcher: int) -> int:
    """Wait for the process with which a launcher checks its node: of one of its interpreters."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        seen = parents()
        for pid, parent in seen.items():
            if seen.get(parent) == launcher:
                return pid
        time.sleep(0.01)
    raise AssertionError("no process checks the node")


def test_a_check_process_that_is_killed_is_forgiven_and_a_slow_node_leaves(
    launch, script, tmp_path, free_port
) -> None:
    path, end = script(TRAINS), tmp_path / "end"
    (tmp_path / "slow").mkdir()
    script(SLOW, "slow/sitecustomize.py")

    def node(rank: int, *flags: str, **environment: str):
        return launch(
            "--nnodes", "2:3", "--node-rank", rank, "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "job", *flags,
            "--rdzv-conf", f"is_host={int(not rank)},last_call_timeout=1000",
            "--network-check", "--exclude-straggler", "--check-timeout", "15",
            "--straggler-ratio", "100000", "--straggler-seconds", "4", path, end,
            GANGLINE_JOB_SECRET=SECRET, **environment,
        )  # fmt: skip

    healthy = [node(0, "--no-standby"), node(1, "--preload", "torch")]
    slow = node(2, "--preload", "torch", PYTHONPATH=str(tmp_path / "slow"))
    os.kill(check_process(healthy[1].process.pid), signal.SIGKILL)
    assert slow.wait() == NODE_FAULT_EXIT_CODE, slow.output
    assert "this node is slow: node 2 failed compute" in slow.output
    for run, before in zip(healthy, (False, True), strict=True):
        # The last call is long: the others must not wait for a node that has left.
        run.until(f"trains in 2, imported before: {before}")
    (event,) = [
        one for one in asyncio.run(events(f"127.0.0.1:{free_port}")) if one.reason == "NodeLeft"
    ]
    assert event.node_id == 2
    assert event.message.startswith("this node is slow: node 2 failed compute")
    end.touch()
    assert [run.wait() for run in healthy] == [0, 0], healthy[0].output + healthy[1].output
    for run in healthy:
        assert "node check: node 2 is slow" in run.output


@pytest.mark.parametrize("flags", [["--no-standby"], []], ids=["for the check alone", "to train"])
def test_nothing_of_a_check_outlives_its_agent(launch, script, free_port, flags) -> None:
    run = launch(
        "--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port}",
        "--rdzv-conf", "is_host=1", "--network-check", *flags, script("import torch\n" + TRAINS),
    )  # fmt: skip
    tests = check_process(run.process.pid)  # endlessly: no other node joins
    interpreter = parents()[tests]
    run.process.kill()
    deadline = time.monotonic() + PATIENCE_S
    while {tests, interpreter} & set(parents()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
