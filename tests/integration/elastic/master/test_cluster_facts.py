"""Facts and tuning in ConfigMaps of a real API server, and masters that have none."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gangline.api.jobs.training_facts import TrainingFacts
from gangline.api.resources import CONFIG_MAPS
from gangline.elastic.master.facts.cluster import JobConfigMaps
from gangline.elastic.progress import StepTimes
from gangline.elastic.protocol.client import MasterClient
from gangline.elastic.protocol.messages import Commands, Heartbeat, NodeReport, Tuning, WorldInfo
from gangline.kube.client.client import ApiClient
from gangline.local.apiserver.server import ApiServer
from integration.elastic.master.master_process import MasterProcess, a_join, world_for

PATIENCE_S = 60.0
FACTS, TUNING = "elasticjob-train-facts", "elasticjob-train-tuning"


async def create(client: ApiClient, name: str, data: dict[str, str]) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, "default")


def master_in(api_server: ApiServer, folder: Path) -> MasterProcess:
    return MasterProcess(
        folder,
        flags=("--journal-configmap", "default/state", "--job-uid", "u-1"),
        environment={"KUBECONFIG": str(api_server.kubeconfig)},
    )


async def beat(
    agent: MasterClient, world: WorldInfo, step: int, tuning_version: int | None = None
) -> Commands:
    report = NodeReport(
        pod="pod-0", batch_size=8, memory_peak_bytes=7, tuning_version=tuning_version,
        step_times=StepTimes(max(step, 1), 0.5, 0.0) if step else None,
    )  # fmt: skip
    return await agent.ask(
        Heartbeat(
            node_id=0, incarnation=agent.name.incarnation, round=world.round, node=report,
            step=step or None, first_step=1 if step else None,
        ),
        Commands,
        timeout_s=PATIENCE_S,
    )  # fmt: skip


async def tuning_for(agent: MasterClient, world: WorldInfo, step: int) -> Tuning:
    """Wait until the master passes a tuning on."""
    async with asyncio.timeout(PATIENCE_S):
        while (tuning := (await beat(agent, world, step, 0)).tuning) is None:
            await asyncio.sleep(0.05)
        return tuning


async def facts_of(client: ApiClient, segments: int) -> TrainingFacts:
    """Wait until this number of segments is published."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            text = (await client.get(CONFIG_MAPS, FACTS, "default")).data.get("facts", "")
            if text:
                facts = msgspec.json.decode(text, type=TrainingFacts)
                if len(facts.segments) >= segments:
                    return facts
            await asyncio.sleep(0.05)


async def test_facts_survive_the_master_and_tuning_is_passed_on(
    client: ApiClient, api_server: ApiServer, tmp_path: Path
) -> None:
    await create(client, FACTS, {})
    await create(client, TUNING, {})
    master = master_in(api_server, tmp_path)
    try:
        await asyncio.to_thread(master.start, journal=False)
        async with AsyncExitStack() as stack:
            agent = await master.agent(stack, 0)
            world = await world_for(agent, a_join(0, lowest=1, highest=1))
            await beat(agent, world, 0)
            await beat(agent, world, 30)
            first = await facts_of(client, 1)
            assert (first.name, first.namespace, first.uid) == ("train", "default", "u-1")
            assert first.segments[0].steps == 30

            tuning: dict[str, Any] = {"v": 1, "version": 4, "dataloader": {"numWorkers": 3}}
            data = {"tuning": json.dumps(tuning)}
            await client.patch(CONFIG_MAPS, TUNING, {"data": data}, "default")
            assert (await beat(agent, world, 31)).tuning is None, "this agent takes none"
            passed = await tuning_for(agent, world, 31)
            assert (passed.version, passed.dataloader.num_workers) == (4, 3)
            assert (await beat(agent, world, 31, 4)).tuning is None, "it has this one"

            await beat(agent, world, 60)
        assert await asyncio.to_thread(master.stop) == 0
        second = await facts_of(client, 2)
        assert second.segments[0] == first.segments[0], "what was published does not change"
        await asyncio.to_thread(master.start, journal=False)
        async with AsyncExitStack() as stack:
            agent = await master.agent(stack, 0)
            await tuning_for(agent, world, 70)  # it has read what the first one published
            await beat(agent, world, 100)
        assert await asyncio.to_thread(master.stop) == 0
        third = await facts_of(client, 3)
        assert third.segments[:2] == second.segments
        assert third.segments[2].step_first == 71
    finally:
        if master.process is not None:
            master.kill()


async def test_master_without_config_maps_continues_and_logs_it_once(
    client: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    facts = JobConfigMaps(client, "default", "train")
    with caplog.at_level(logging.WARNING):
        assert await facts.published() is None
        for _ in range(3):
            await facts.publish(b"{}")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "the facts of this job cannot be read",
        "the facts of this job cannot be written",
    ]


async def test_tuning_that_cannot_be_read_is_ignored(client: ApiClient) -> None:
    await create(client, TUNING, {"tuning": "{"})
    found: asyncio.Queue[Tuning] = asyncio.Queue()
    facts = JobConfigMaps(client, "default", "train")
    task = asyncio.create_task(facts.watch_tuning(found.put_nowait))
    for text in ('{"v": 1, "version": 0}', '{"v": 1, "version": 2}'):
        await client.patch(CONFIG_MAPS, TUNING, {"data": {"tuning": text}}, "default")
    tuning = await asyncio.wait_for(found.get(), PATIENCE_S)
    assert tuning.version == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
