"""Node check with a real master: the master is killed while nodes gather, nodes while they test."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gangline.elastic.nodecheck.interpreters import idle_interpreters
from gangline.elastic.nodecheck.result import CheckWorkload
from gangline.elastic.nodecheck.run import WORKER, CheckReport, CheckSettings, run_check
from gangline.elastic.protocol.client import ClientIdentity, MasterClient
from gangline.elastic.protocol.messages import CheckGroup, CheckRequest, CheckResult, CheckVerdict
from gangline.elastic.protocol.wire import RequestRefusedError
from integration.elastic.master.master_process import MasterProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKLOAD = CheckWorkload(
    matrix_size=64, matrix_repeats=2, collective_bytes=4096, collective_repeats=2
)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    master = MasterProcess(tmp_path).start(journal=False)
    yield master
    master.kill()


class Asked:
    """An exchange with a master, through its absences."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client

    async def ask(self, message: CheckRequest | CheckResult) -> CheckGroup | CheckVerdict:
        while True:
            try:
                reply = await self._client.call(message, timeout_s=None)
            except RequestRefusedError as error:
                if error.reason != "TimedOut":
                    raise
            else:
                assert isinstance(reply, CheckGroup | CheckVerdict)
                return reply


PATIENT = """
import json, os, socket, time
from pathlib import Path

def main(descriptor):
    channel = socket.socket(fileno=descriptor)
    orders = channel.makefile("r")

    def say(**message):
        channel.sendall(json.dumps(message).encode() + b"\\n")

    say(type="listening", port=1)
    start = json.loads(orders.readline())
    for line in orders:
        Path(__file__ + ".begun").touch()
        if start["local_rank"] in {dying}:
            os._exit(17)
        if {dying} or json.loads(line)["world_size"] > start["local_world_size"]:
            time.sleep(1000)
        say(type="measured", passed=True, device="cpu")
        say(type="listening", port=1)
"""
"""Replaces a check process: waits endlessly, or dies."""


Patient = Callable[..., str]


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, dying: Sequence[int] = ()) -> str:
        (tmp_path / f"{name}.py").write_text(PATIENT.format(dying=[*dying]))
        return name

    return write


async def begun(folder: Path, name: str) -> None:
    async with asyncio.timeout(120):
        while not (folder / f"{name}.py.begun").exists():
            await asyncio.sleep(0.05)


async def checked(
    master: MasterProcess,
    node: int,
    nodes: int,
    module: str = WORKER,
    size: int = 1,
) -> CheckReport:
    request = CheckRequest(
        node_id=node, incarnation="a", node_rank=node, host="127.0.0.1", nodes=nodes, wait_s=1.0,
        straggler_ratio=1e6,  # other load of this machine makes no node slow
    )  # fmt: skip
    name = ClientIdentity("train", node, "a")
    async with MasterClient(master.address, master.secret, name) as client:
        await client.wait_connected(60.0)
        settings = CheckSettings(request, local_world_size=size, workload=WORKLOAD, module=module)
        async with idle_interpreters(size) as interpreters:
            return await run_check(settings, Asked(client), interpreters)


async def test_nodes_are_checked_through_a_master_that_was_killed_meanwhile(
    master: MasterProcess,
) -> None:
    first = asyncio.create_task(checked(master, 0, 2))
    await asyncio.wait([first], timeout=0.5)
    master.kill()
    master.start(journal=False)
    reports = await asyncio.gather(first, checked(master, 1, 2))
    assert [one.verdict.passed for one in reports] == [True, True]
    assert [len(one.results) for one in reports] == [1, 1]
    assert all(one.results[0].bandwidth > 0 for one in reports)


async def test_no_node_waits_for_a_dead_process(master: MasterProcess, patient: Patient) -> None:
    modules = [patient("dies", dying=[1]), patient("lives")]
    nodes = (checked(master, node, 2, module, 2) for node, module in enumerate(modules))
    async with asyncio.timeout(120):
        reports = await asyncio.gather(*nodes)
    assert [one.verdict.passed for one in reports] == [False, True]
    assert "node 0 failed process on process 1" in reports[1].verdict.faulty[0]
    assert "ended with code 17" in reports[1].verdict.faulty[0]
