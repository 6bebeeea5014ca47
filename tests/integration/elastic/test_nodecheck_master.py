"""The node check through a real master, which is killed while nodes gather."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.elastic.nodecheck.orders import Workload
from gangline.elastic.nodecheck.run import CheckReport, CheckSettings, run_check
from gangline.elastic.protocol.client import Client, ClientName
from gangline.elastic.protocol.errors import RequestRefusedError
from gangline.elastic.protocol.messages import CheckGroup, CheckResult, CheckVerdict, CheckWanted
from gangline.elastic.protocol.seal import secret_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKLOAD = Workload(matrix_size=64, matrix_repeats=2, collective_bytes=4096, collective_repeats=2)


class Master:
    """A master process that comes back on its port."""

    def __init__(self, folder: Path) -> None:
        self._told = folder / "port"
        self.port = 0

    async def start(self) -> None:
        self._told.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gangline.elastic.master", "--host", "127.0.0.1"),
            *("--port", str(self.port), "--port-file", str(self._told), "--log-level", "warning"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        await self._process.stdout.readline()
        self.port = int(self._told.read_text())

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Master]:
    master = Master(tmp_path)
    await master.start()
    yield master
    await master.kill()


class Asked:
    """An exchange with a master, through its absences."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, message: CheckWanted | CheckResult) -> CheckGroup | CheckVerdict:
        while True:
            try:
                reply = await self._client.call(message, timeout_s=None)
            except RequestRefusedError as error:
                if error.reason != "TimedOut":
                    raise
            else:
                assert isinstance(reply, CheckGroup | CheckVerdict)
                return reply


async def checked(master: Master, node: int, nodes: int) -> CheckReport:
    wanted = CheckWanted(
        node_id=node, incarnation="a", node_rank=node, host="127.0.0.1", nodes=nodes, wait_s=1.0
    )
    name = ClientName("", node, "a")
    async with Client(f"127.0.0.1:{master.port}", secret_of({}, ""), name) as client:
        await client.connected(60.0)
        return await run_check(CheckSettings(node, wanted, workload=WORKLOAD), Asked(client))


async def test_nodes_are_checked_through_a_master_that_was_killed_meanwhile(
    master: Master,
) -> None:
    first = asyncio.create_task(checked(master, 0, 2))
    await asyncio.wait([first], timeout=0.5)
    await master.kill()
    await master.start()
    reports = await asyncio.gather(first, checked(master, 1, 2))
    assert [one.verdict.passed for one in reports] == [True, True]
    assert [len(one.outcomes) for one in reports] == [1, 1]
    assert all(one.outcomes[0].bandwidth > 0 for one in reports)
