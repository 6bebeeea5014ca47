"""Nodes that are stopped for longer than the master waits, and continued: SIGSTOP and SIGCONT."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

TRAINS = """
    import os, sys, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(1_000_000):
        done = torch.tensor([float(os.path.exists(sys.argv[1]))])
        dist.all_reduce(done)
        if done.item():
            break
        if step == 20:
            print(f"trains {rank}/{size} by {os.getpid()} ", flush=True)
        time.sleep(0.02)
    dist.destroy_process_group()
"""


@pytest.fixture
def nodes(launch, script, tmp_path):
    """Two launchers that train together; the first one hosts the master."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = script(TRAINS)

    def start(host: int):
        return launch(
            "--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
            "--rdzv-conf", f"is_host={host}", "--no-standby", path, tmp_path / "end",
            GANGLINE_JOB_SECRET="00" * 32,
        )  # fmt: skip

    runs = [start(1), start(0)]
    for run in runs:
        run.until("/2 by ")
    return runs


def sizes(run) -> list[int]:
    return [int(size) for size in re.findall(r"trains \d/(\d) by", run.output)]


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree(int(child)))]


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def end_all(runs, tmp_path) -> None:
    (tmp_path / "end").touch()
    assert [run.wait() for run in runs] == [0, 0], runs[0].output + runs[1].output


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stopped_agent_shrinks_the_world_once_and_grows_it_once(nodes, tmp_path):
    first, second = nodes
    os.kill(second.process.pid, signal.SIGSTOP)
    first.until("trains 0/1 by ")
    os.kill(second.process.pid, signal.SIGCONT)
    for run in nodes:
        run.until("/2 by ", 2)
    end_all(nodes, tmp_path)
    assert sizes(first) == [2, 1, 2]
    assert sizes(second) == [2, 2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_goes_on_after_the_node_of_the_master_was_stopped(nodes, tmp_path):
    first, second = nodes
    stopped = tree(first.process.pid)
    signal_all(stopped, signal.SIGSTOP)
    second.until("leaving this world: neither the master nor node")
    signal_all(stopped, signal.SIGCONT)
    for run in nodes:
        run.until("/2 by ", 2)
    end_all(nodes, tmp_path)
    assert sizes(first) == sizes(second) == [2, 2]
