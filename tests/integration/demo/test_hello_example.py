"""The first own job of the documents: every run of it ends without an error.

Takes 30 s: PyTorch starts in each rank of each run.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[3] / "examples/hello/train.py"
RANKS, RUNS = 3, 20

FORKED_RANKS = """
import os, runpy, sys
import torch, torch.distributed  # once: their import takes longer than all runs

script, ranks, ports = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
failed = []
for port in ports:
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                           "RANK": str(rank), "WORLD_SIZE": str(ranks)}
            runpy.run_path(script, run_name="__main__")
            sys.exit()  # as any interpreter ends, with all its exit handlers
        children.append(child)
    failed += [status for child in children if (status := os.waitpid(child, 0)[1])]
sys.exit(f"wait statuses: {failed}" if failed else 0)
"""


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_rank_of_every_run_ends_without_an_error() -> None:
    command = [sys.executable, "-c", FORKED_RANKS, str(EXAMPLE), str(RANKS), *free_ports(RUNS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the sum is 3") == RANKS * RUNS
