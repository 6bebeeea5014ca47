"""Several nodes, here as several launchers of one machine: restarts, losses, returns."""

import asyncio
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import TypeVar

import pytest

from gangline.elastic.agent.rendezvous import RendezvousError
from gangline.elastic.launcher.local_master import HostedMaster
from gangline.elastic.protocol.channel import read_job_secret
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import (
    Acknowledged,
    CommandBody,
    DumpStacks,
    JobStatusReply,
    JobStatusRequest,
    KeyValueReply,
    KeyValueWait,
    ProtocolMessage,
    RunCheck,
    SaveCheckpoint,
    SendCommand,
)
from gangline.elastic.variables import join_address

PATIENCE_S = 60.0

R = TypeVar("R", bound=ProtocolMessage)

HELD = """
    print("imported before:", "_decimal" in open("/proc/self/maps").read())
    import decimal, os, sys, time
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    port = os.environ["MASTER_PORT"]
    print(f"up {attempt} {rank}/{world} {os.getpid()} {port}\\n", end="", flush=True)
    step = 0
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
        step += 1
        with open(os.environ["GANGLINE_PROGRESS_FILE"], "w") as progress:
            progress.write(f"step {step}\\n")
"""
HANGS = """
    import os, time
    from torch.distributed.wait import barrier
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
    def load_batch():
        time.sleep(1000)
    if attempt == 0:
        barrier() if rank == "0" else load_batch()
    print("came through", rank, flush=True)
"""


SECRET = "00" * 32


async def asked(address: str, message: ProtocolMessage, kind: type[R]) -> R:
    """Ask the master."""
    async with MasterClient(
        address, read_job_secret({"GANGLINE_JOB_SECRET": SECRET}, "job")
    ) as client:
        return await client.ask(message, kind)


async def told_to(address: str, what: CommandBody) -> JobStatusReply:
    """Give all nodes a command; return how the master sees the job."""
    await asked(address, SendCommand(what=what), Acknowledged)
    return await asked(address, JobStatusRequest(), JobStatusReply)


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """The file that lets all workers end."""
    return tmp_path / "end"


@pytest.fixture
def host(request) -> str:
    """The address of the master."""
    return getattr(request, "param", "127.0.0.1")


@pytest.fixture
def node(launch, script, end, host):
    """Start the launcher of a node; the first one is started with ``hosts``."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        address = join_address(host, probe.getsockname()[1])
    path = script(HELD)

    def start(nodes: str, *, hosts: bool = False, arguments: tuple = (), path: Path = path):
        conf = f"last_call_timeout=1,is_host={int(hosts)}"
        run = launch(
            "--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", address,
            "--rdzv-id", "job", "--rdzv-conf", conf, *arguments, path, end,
            GANGLINE_JOB_SECRET=SECRET,
        )  # fmt: skip
        run.master = address
        return run

    return start


def starts(run) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"up (\d+) (\d+/\d+) (\d+) (\d+)\n", run.output)
    return [(int(attempt), rank, int(pid), int(port)) for attempt, rank, pid, port in found]


def child_of(run, text: str) -> int:
    """Return the child process of a launcher whose command line contains the text."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_text()
        except OSError:
            continue
        if parent == run.process.pid and text in command:
            return int(path.parent.name)
    raise AssertionError(f"no child with {text}")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"], indirect=True)
def test_a_killed_worker_restarts_both_nodes_also_while_the_master_is_gone(node, end):
    runs = [node("2", hosts=True), node("2")]
    for run in runs:
        run.until("up 0 ")
    assert {starts(run)[0][1] for run in runs} == {"0/2", "1/2"}

    os.kill(starts(runs[1])[0][2], signal.SIGKILL)
    for run in runs:
        run.until("up 1 ")
    assert starts(runs[0])[1][3] == starts(runs[1])[1][3] != starts(runs[0])[0][3]

    master = child_of(runs[0], "elastic.master")
    os.kill(master, signal.SIGSTOP)  # silent, as behind a broken network
    os.kill(starts(runs[0])[1][2], signal.SIGKILL)
    for run in runs:
        run.until("up 2 ")
    os.kill(master, signal.SIGKILL)
    runs[0].until("the master ended with code -9; starting it again")

    end.touch()  # both report the end to the new master
    assert [run.wait() for run in runs] == [0, 0], runs[0].output + runs[1].output
    assert all(len(starts(run)) == 3 for run in runs), "the master's death restarts no worker"


def test_a_lost_node_leaves_a_smaller_world_and_comes_back(node, end):
    first, second = node("1:2", hosts=True), node("1:2")
    for run in (first, second):
        run.until("/2 ")
    second.process.kill()
    first.until("0/1 ")
    asyncio.run(asked(first.master, KeyValueWait(keys=("gangline/imports",)), KeyValueReply))
    third = node("1:2")
    third.until("/2 ")
    first.until("/2 ", 2)
    assert "spare interpreters are warm: 1; joining" in third.output
    assert "imported before: True" in third.output
    assert "imported before: False" in second.output
    assert [rank.partition("/")[2] for _, rank, _, _ in starts(first)] == ["2", "1", "2"]
    end.touch()
    assert (first.wait(), third.wait()) == (0, 0), first.output + third.output


@pytest.mark.usefixtures("torch_that_waits")
def test_a_hang_names_the_rank_that_did_not_arrive_on_whichever_node(node, script):
    path, flags = script(HANGS, "hangs.py"), ("--hang-timeout", 4, "--max-restarts", 1)
    runs = [node("2", hosts=True, arguments=flags, path=path)]
    runs.append(node("2", arguments=flags, path=path))
    assert [run.wait() for run in runs] == [0, 0], runs[0].output + runs[1].output
    named = [run for run in runs if "No worker has made progress" in run.output]
    assert named
    for run in named:
        assert "rank 1 on " in run.output
        assert "in load_batch; waiting for it: rank 0" in run.output


def test_nodes_report_progress_and_execute_commands(node, end):
    sizes = ("--check-matrix-size", 32, "--check-collective-mib", 0.1)
    runs = [node("1:2", hosts=True, arguments=sizes), node("1:2", arguments=sizes)]
    for run in runs:
        run.until("/2 ")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = asyncio.run(told_to(runs[0].master, DumpStacks(reason="curious")))
        for run in runs:
            run.until('train.py", line')
        if status.goodput.step or time.monotonic() > deadline:
            break
    assert status.goodput.step > 0
    assert 0 < status.goodput.productive_s <= status.goodput.wall_s
    asyncio.run(told_to(runs[0].master, SaveCheckpoint(reason="curious")))
    for run in runs:
        run.until("saving the newest checkpoint: curious")
    asyncio.run(told_to(runs[0].master, RunCheck(reason="curious")))
    for run in runs:
        run.until("/2 ", 2)
        assert re.search(r"node check: nodes \d+, \d+: [\d.]+ GB/s", run.output), run.output
    first, second = runs
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 128 + signal.SIGTERM
    first.until("0/1 ")  # the others train on
    end.touch()
    assert first.wait() == 0, first.output


def test_a_node_that_does_not_come_is_named_after_the_stated_time(launch, script, free_port):
    run = launch(
        "--nnodes", 2, "--node-rank", 0, "--master-port", free_port,
        "--rdzv-conf", "join_timeout=1", script("print('never')"),
    )  # fmt: skip
    assert run.wait() == 1
    assert "refused" in run.output
    assert "never" not in run.output
    assert "Traceback" not in run.output


async def test_taken_port_is_logged_when_rendezvous_fails(tmp_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        host = await HostedMaster("job", f"127.0.0.1:{port}", tmp_path).__aenter__()
        async with asyncio.timeout(PATIENCE_S):
            while not host.is_port_taken:
                await asyncio.sleep(0.01)
        await host.__aexit__(RendezvousError, RendezvousError("no node joined"), None)
    assert f"another program listens on port {port} of this node" in caplog.text
