"""A real master, killed at any moment and started again on its port: nothing is lost."""

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gangline.elastic.protocol.messages import (
    Heartbeat,
    JobStatusReply,
    JobStatusRequest,
    KeyValueSet,
    RequestRefused,
    RestartCommand,
    WorkersFinished,
)
from integration.elastic.master.master_process import (
    PATIENCE_S,
    MasterProcess,
    a_join,
    world_for,
)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    process = MasterProcess(tmp_path).start()
    yield process
    if process.process is not None:
        process.kill()


async def test_nodes_form_a_world_and_restart_after_a_death(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        agents = [await master.agent(stack, node) for node in range(2)]
        worlds = await asyncio.gather(
            *(world_for(agent, a_join(node, lowest=1)) for node, agent in enumerate(agents))
        )
        assert worlds[0] == worlds[1]
        commands = agents[0].commands()
        await agents[1].close()  # as the kernel does when an agent is killed
        command = await asyncio.wait_for(anext(commands), PATIENCE_S)
        assert isinstance(command.what, RestartCommand)
        alone = await world_for(agents[0], a_join(0, 2, lowest=1))
        assert [member.node_id for member in alone.members] == [0]
        assert alone.round > worlds[0].round
        await commands.aclose()


async def test_the_world_is_kept_when_the_master_comes_back(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        agents = [await master.agent(stack, node) for node in range(2)]
        worlds = await asyncio.gather(
            *(world_for(agent, a_join(node)) for node, agent in enumerate(agents))
        )
        master.kill()
        master.start()
        for node, agent in enumerate(agents):
            beat = Heartbeat(node_id=node, incarnation=f"i{node}", round=worlds[0].round)
            assert (await agent.call(beat, timeout_s=PATIENCE_S)).commands == ()
            assert await world_for(agent, a_join(node)) == worlds[0]
        status = await agents[0].ask(JobStatusRequest(), JobStatusReply)
        assert status.world == worlds[0]
        assert "MasterBack" in [event.reason for event in status.events]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


async def test_metrics_and_health_are_served_on_the_same_port(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        agent = await master.agent(stack, 0)
        await world_for(agent, a_join(0, lowest=1, highest=1))
        beat = Heartbeat(node_id=0, incarnation="i0", round=1, phase="training", step=7)
        await agent.call(beat)
        page = await asyncio.to_thread(get, f"http://{master.address}/metrics")
    assert "gangline_master_step 7.0" in page
    assert "gangline_master_members 1.0" in page
    assert await asyncio.to_thread(get, f"http://{master.address}/healthz") == "ok\n"


def test_flags_of_dlrovers_master_are_accepted(tmp_path: Path) -> None:
    master = MasterProcess(
        tmp_path,
        flags=("--platform", "local", "--namespace", "ml", "--job_name", "train",
               "--node_num", "2", "--pending_timeout", "900"),
    ).start()  # fmt: skip
    assert master.stop() == 0


def test_memory_of_the_master_is_small(master: MasterProcess) -> None:
    assert master.process is not None
    status = Path(f"/proc/{master.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    assert int(found.group(1)) * 1024 < 60e6


async def test_master_ends_when_the_job_is_over(tmp_path: Path) -> None:
    master = MasterProcess(tmp_path, flags=("--linger", "0")).start()
    async with AsyncExitStack() as stack:
        agent = await master.agent(stack, 0)
        world = await world_for(agent, a_join(0, lowest=1, highest=1))
        finished = WorkersFinished(node_id=0, incarnation="i0", round=world.round)
        assert not isinstance(await agent.call(finished), RequestRefused)
        assert await asyncio.to_thread(master.ended) == 0


async def test_master_continues_with_a_full_disk(tmp_path: Path) -> None:
    master = MasterProcess(tmp_path, largest_file=4096).start()
    try:
        async with AsyncExitStack() as stack:
            agent = await master.agent(stack, 0)
            for _ in range(6):
                await agent.call(KeyValueSet(key="k", value=bytes(2000)), timeout_s=PATIENCE_S)
            await world_for(agent, a_join(0, lowest=1, highest=1))
            status = await agent.ask(JobStatusRequest(), JobStatusReply, timeout_s=PATIENCE_S)
            assert "JournalFailed" in [event.reason for event in status.events]
    finally:
        master.kill()
