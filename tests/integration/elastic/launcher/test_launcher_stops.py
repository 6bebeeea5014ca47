"""Nodes that are stopped for longer than the master waits, and continued: SIGSTOP and SIGCONT."""

import contextlib
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

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
def master(launch, free_port, tmp_path):
    """A master that takes a node for lost after three seconds instead of fifteen."""
    return launch(
        "--job-name", "job", "--port", free_port, "--silence", 3,
        "--journal", tmp_path / "journal", program="master", GANGLINE_JOB_SECRET="00" * 32,
    )  # fmt: skip


@pytest.fixture
def nodes(launch, script, tmp_path, free_port, master):
    """Two launchers that train together, beside their master."""
    path = script(TRAINS)

    def start(rank: int):
        return launch(
            "--nnodes", "1:2", "--node-rank", rank, "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "job",
            "--rdzv-conf", "is_host=0", path, tmp_path / "end",
            GANGLINE_JOB_SECRET="00" * 32,
        )  # fmt: skip

    runs = [start(rank) for rank in range(2)]
    for run in runs:
        run.until("/2 by ")
        run.until("are warm")
    return SimpleNamespace(first=runs[0], second=runs[1], master=master.process.pid)


def sizes(run) -> list[int]:
    return [int(size) for size in re.findall(r"trains \d/(\d) by", run.output)]


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree(int(child)))]


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # a short command that the agent ran
            os.kill(pid, number)


def train_on(nodes, tmp_path) -> None:
    """Wait until both train together again; end them."""
    runs = [nodes.first, nodes.second]
    for run in runs:
        run.until("/2 by ", 2)
    (tmp_path / "end").touch()
    assert [run.wait() for run in runs] == [0, 0], runs[0].output + runs[1].output


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stopped", ["agent of rank 0", "agent of rank 1", "node of rank 1"])
def test_stop_shrinks_the_world_once_and_its_end_grows_it_once(nodes, tmp_path, stopped):
    run, other = nodes.first, nodes.second
    if stopped.endswith("1"):
        run, other = other, run
    pids = tree(run.process.pid) if stopped.startswith("node") else [run.process.pid]
    signal_all(pids, signal.SIGSTOP)
    other.until("trains 0/1 by ")
    signal_all(pids, signal.SIGCONT)
    train_on(nodes, tmp_path)
    assert sizes(other) == [2, 1, 2]
    assert sizes(run) == [2, 2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_goes_on_after_the_node_of_the_master_was_stopped(nodes, tmp_path):
    stopped = [*tree(nodes.first.process.pid), nodes.master]
    signal_all(stopped, signal.SIGSTOP)
    nodes.second.until("leaving this world: neither the master nor node")
    signal_all(stopped, signal.SIGCONT)
    train_on(nodes, tmp_path)
    assert sizes(nodes.first) == sizes(nodes.second) == [2, 2]
