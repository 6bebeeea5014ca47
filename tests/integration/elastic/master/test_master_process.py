"""A real master, killed at any moment and started again on its port: nothing is lost."""

import asyncio
import random
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from gangline.elastic.protocol.blocking_client import BlockingClient
from gangline.elastic.protocol.channel import JobSecret
from gangline.elastic.protocol.client import (
    MasterClient,
    MasterUnreachableError,
    RequestRefusedError,
)
from gangline.elastic.protocol.messages import (
    Acknowledged,
    CheckGroup,
    CheckRequest,
    CheckResult,
    CheckVerdict,
    DumpStacks,
    Heartbeat,
    JobStatusReply,
    JobStatusRequest,
    JoinPending,
    KeyValueAdd,
    KeyValueReply,
    KeyValueSet,
    KeyValueWait,
    Leave,
    RequestRefused,
    RestartCommand,
    SendCommand,
    ShardReply,
    ShardRequest,
    WorkersFinished,
)
from gangline.elastic.shards import dataset, events
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


async def test_a_join_survives_a_restart_of_the_master(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        first = await master.agent(stack, 0)
        waits = asyncio.create_task(world_for(first, a_join(0)))
        await first.wait_connected(PATIENCE_S)
        master.kill()
        master.start()
        second = await master.agent(stack, 1)
        assert await world_for(second, a_join(1)) == await waits


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


async def test_master_without_a_journal_learns_of_the_world_from_heartbeats(tmp_path: Path) -> None:
    master = MasterProcess(tmp_path).start(journal=False)
    try:
        async with AsyncExitStack() as stack:
            agents = [await master.agent(stack, node) for node in range(2)]
            old = await asyncio.gather(
                *(world_for(agent, a_join(node)) for node, agent in enumerate(agents))
            )
            master.kill()
            master.start(journal=False)
            for node, agent in enumerate(agents):
                beat = Heartbeat(node_id=node, incarnation=f"i{node}", round=old[0].round)
                await agent.call(beat, timeout_s=PATIENCE_S)
            commands = agents[1].commands()
            again = [
                msgspec.structs.replace(a_join(node, 2), round_seen=old[0].round)
                for node in range(2)
            ]
            rejoins = asyncio.create_task(world_for(agents[0], again[0]))
            command = await asyncio.wait_for(anext(commands), PATIENCE_S)
            assert isinstance(command.what, RestartCommand)
            new = await world_for(agents[1], again[1])
            assert await rejoins == new
            assert new.round > old[0].round
            assert new.members == old[0].members
            await commands.aclose()
    finally:
        master.kill()


async def test_shards_are_neither_lost_nor_doubled_over_many_deaths(
    master: MasterProcess,
) -> None:
    records, workers = 600, 4
    seen: list[int] = []

    def work(worker: str) -> None:
        with BlockingClient(master.address, master.secret) as client:
            request = 0
            while True:
                request += 1
                take = events.TakeShards("d", worker, request, 3)
                answer = client.ask(
                    ShardRequest(event=take, wait_s=1.0), ShardReply, timeout_s=PATIENCE_S
                ).answer
                assert isinstance(answer, events.TakenShards), answer
                if answer.supply is events.Supply.END:
                    return
                for shard in answer.shards:
                    seen.extend(range(shard.start, shard.end))
                done = tuple(shard.lease for shard in answer.shards)
                client.call(
                    ShardRequest(event=events.ShardReport("d", worker, done=done)),
                    timeout_s=PATIENCE_S,
                )

    async with AsyncExitStack() as stack:
        agent = await master.agent(stack, 0)
        table = dataset.Table(name="d", size=records, shard_size=2)
        await agent.call(ShardRequest(event=events.RegisterDataset(table)), timeout_s=PATIENCE_S)
        chance = random.Random(1)
        jobs = [asyncio.create_task(asyncio.to_thread(work, f"{n}/0")) for n in range(workers)]
        for _ in range(3):
            reached = len(seen) + chance.randrange(20, 120)
            while len(seen) < reached and not all(job.done() for job in jobs):
                await asyncio.sleep(0.005)
            master.kill()
            master.start()
        await asyncio.gather(*jobs)
    assert sorted(seen) == list(range(records))


async def test_a_repeated_addition_counts_once_over_deaths(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        agents = [await master.agent(stack, node) for node in range(3)]

        async def add(agent: MasterClient) -> None:
            for _ in range(40):
                await agent.call(KeyValueAdd(key="n"), timeout_s=PATIENCE_S)

        adding = [asyncio.create_task(add(agent)) for agent in agents]
        for _ in range(3):
            await asyncio.sleep(0)
            master.kill()
            master.start()
        await asyncio.gather(*adding)
        total = await agents[0].ask(
            KeyValueAdd(key="n", amount=0), KeyValueReply, timeout_s=PATIENCE_S
        )
        assert total.values == (b"120",)


async def test_keys_commands_and_the_end_of_a_job(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        agents = [await master.agent(stack, node) for node in range(2)]
        world, _ = await asyncio.gather(
            *(world_for(agent, a_join(node)) for node, agent in enumerate(agents))
        )
        waits = asyncio.create_task(agents[0].call(KeyValueWait(keys=("a", "b"))))
        for key in ("a", "b"):
            await agents[1].call(KeyValueSet(key=key, value=key.encode()))
        assert await asyncio.wait_for(waits, PATIENCE_S) == KeyValueReply(values=(b"a", b"b"))

        commands = agents[1].commands()
        await agents[0].call(SendCommand(what=DumpStacks(reason="look"), nodes=(1,)))
        command = await asyncio.wait_for(anext(commands), PATIENCE_S)
        assert command.what == DumpStacks(reason="look")
        await commands.aclose()

        early = WorkersFinished(node_id=0, incarnation="i0", round=world.round, wait_s=0.01)
        assert isinstance(await agents[0].call(early), JoinPending)
        ends = [
            agent.call(WorkersFinished(node_id=node, incarnation=f"i{node}", round=world.round))
            for node, agent in enumerate(agents)
        ]
        assert await asyncio.wait_for(asyncio.gather(*ends), PATIENCE_S) == [
            Acknowledged(),
            Acknowledged(),
        ]
        await agents[0].call(Leave(node_id=0, incarnation="i0", succeeded=True))
        with pytest.raises(RequestRefusedError, match="JobOver"):
            await agents[1].call(a_join(5))


async def test_clients_without_the_secret_neither_read_nor_disturb(master: MasterProcess) -> None:
    stranger = MasterClient(master.address, JobSecret(b"guess" * 8))
    async with stranger:
        with pytest.raises(MasterUnreachableError):
            await stranger.call(SendCommand(what=DumpStacks()), timeout_s=1.0)
    for noise in (b"GNGL\x01" + bytes(200), b"\xff" * 4096, b"POST / HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
        writer.write(noise)
        await asyncio.wait_for(reader.read(), PATIENCE_S)  # until the master cuts it
        writer.close()
    async with AsyncExitStack() as stack:
        agent = await master.agent(stack, 0)
        status = await agent.ask(JobStatusRequest(), JobStatusReply, timeout_s=PATIENCE_S)
        assert [event.reason for event in status.events] == []


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


def test_a_second_master_is_refused_the_journal(master: MasterProcess) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gangline.elastic.master", "--port", "0", "--journal",
         str(master.folder / "journal")],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "another master uses the journal" in ended.stderr


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


async def check(client: MasterClient, wanted: CheckRequest, *, passes: bool) -> CheckVerdict:
    """Take part in a node check with a given result, without a test."""
    step = await client.call(wanted, timeout_s=PATIENCE_S)
    while isinstance(step, CheckGroup):
        step = await client.call(
            CheckResult(
                node_id=wanted.node_id, incarnation=wanted.incarnation, round=step.round,
                passed=passes and all(member.node_id != 2 for member in step.members),
                test="collective", message="no answer",
            ),
            timeout_s=PATIENCE_S,
        )  # fmt: skip
    assert isinstance(step, CheckVerdict)
    return step


async def test_a_node_check_finds_the_faulty_node(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        agents = [await master.agent(stack, node) for node in range(4)]
        verdicts = await asyncio.gather(
            *(
                check(
                    agent,
                    CheckRequest(node_id=node, incarnation=f"i{node}", host="h", nodes=4),
                    passes=node != 2,
                )
                for node, agent in enumerate(agents)
            )
        )
    assert [verdict.passed for verdict in verdicts] == [True, True, False, True]
    assert verdicts[0].faulty.keys() == {2}


async def test_a_node_that_dies_in_the_check_does_not_delay_it(master: MasterProcess) -> None:
    async with AsyncExitStack() as stack:
        agents = [await master.agent(stack, node) for node in range(3)]
        wishes = [
            CheckRequest(node_id=node, incarnation=f"i{node}", host="h", nodes=3)
            for node in range(3)
        ]
        dying = asyncio.create_task(agents[2].call(wishes[2], timeout_s=PATIENCE_S))
        others = [
            asyncio.create_task(check(agents[node], wishes[node], passes=True)) for node in range(2)
        ]
        assert isinstance(await dying, CheckGroup)
        await agents[2].close()
        verdicts = await asyncio.wait_for(asyncio.gather(*others), PATIENCE_S)
    assert [verdict.passed for verdict in verdicts] == [True, True]


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
