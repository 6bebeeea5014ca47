"""The master's state in a ConfigMap of a real API server."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gangline.api.resources import CONFIG_MAPS, EVENTS
from gangline.elastic.master.cluster_journal import ClusterJournal, open_cluster_journal
from gangline.elastic.master.journal import JournalError
from gangline.elastic.protocol.messages import (
    Acknowledged,
    FailureReport,
    JobStatusReply,
    JobStatusRequest,
)
from gangline.kube.client.client import ApiClient, MalformedObject
from gangline.local.apiserver.server import ApiServer
from gangline.sdk.events import job_events
from integration.elastic.master.master_process import MasterProcess, a_join, world_for

PATIENCE_S = 60.0


async def kept(journal: ClusterJournal, state: bytes) -> None:
    """Write a state to the journal."""
    journal.set_state_source(lambda: state, lambda: {"step": "7"})
    journal.append(b"something happened")
    await journal.close()


async def test_a_master_stores_its_state_in_a_config_map(
    client: ApiClient, api_server: ApiServer, tmp_path: Path
) -> None:
    master = MasterProcess(
        tmp_path,
        flags=("--platform", "pyk8s", "--namespace", "default", "--journal-configmap", "state"),
        environment={"KUBECONFIG": str(api_server.kubeconfig)},
    )
    try:
        await asyncio.to_thread(master.start, journal=False)
        async with AsyncExitStack() as stack:
            agent = await master.agent(stack, 0)
            world = await world_for(agent, a_join(0, lowest=1, highest=1))
            await asyncio.wait_for(_written(client), PATIENCE_S)
            master.kill()
            await asyncio.to_thread(master.start, journal=False)
            status = await agent.ask(JobStatusRequest(), JobStatusReply, timeout_s=PATIENCE_S)
            assert status.world == world
    finally:
        master.kill()


async def _written(client: ApiClient) -> None:
    """Wait until the ConfigMap shows the world."""
    async for event in client.watch(CONFIG_MAPS, "default"):
        if not isinstance(event, MalformedObject) and event.object.data.get("nodes") == "1":
            return


async def test_events_of_an_elastic_job_are_published_once(
    client: ApiClient, api_server: ApiServer, tmp_path: Path
) -> None:
    master = MasterProcess(
        tmp_path,
        flags=("--journal-configmap", "default/told"),
        environment={
            "KUBECONFIG": str(api_server.kubeconfig),
            "ELASTIC_JOB_NAME": "train",
            "JOB_UID": "uid-of-train",
        },
    )
    try:
        await asyncio.to_thread(master.start, journal=False)
        async with AsyncExitStack() as stack:
            agent = await master.agent(stack, 0)
            await world_for(agent, a_join(0, lowest=1, highest=1))
            await asyncio.wait_for(_told(client, "WorldFormed"), PATIENCE_S)
            assert await asyncio.to_thread(master.stop) == 0
            await asyncio.to_thread(master.start, journal=False)
            await asyncio.wait_for(_told(client, "MasterBack"), PATIENCE_S)
            failure = FailureReport(
                node_id=0, cause="SignalKilled", message="Killed", action="Restart"
            )
            await agent.ask(failure, Acknowledged, timeout_s=PATIENCE_S)
            await asyncio.wait_for(_told(client, "WorkersFailed"), PATIENCE_S)
    finally:
        master.kill()
    found = {each.reason: each for each in await job_events(client, "default", "train")}
    assert found.keys() >= {"WorldFormed", "MasterBack", "WorkersFailed"}
    assert {each.subject for each in found.values()} == {"elasticjob/train"}
    assert found["WorldFormed"].message == "round 1: 1 nodes, 1 workers"
    assert found["WorldFormed"].count == 1, "not told again by the next master"
    assert found["WorkersFailed"].type == "Warning"


async def _told(client: ApiClient, reason: str) -> None:
    """Wait for an event."""
    async for event in client.watch(EVENTS, "default"):
        if not isinstance(event, MalformedObject) and event.object.reason == reason:
            return


async def test_a_replaced_master_ends(client: ApiClient) -> None:
    old = await open_cluster_journal(client, "default", "train-journal")
    new = await open_cluster_journal(client, "default", "train-journal")
    await kept(new, b"new")
    fenced = asyncio.Event()
    old.set_state_source(lambda: b"old", dict)
    keeper = asyncio.create_task(old.run_writer(fenced.set))
    old.append(b"something happened")
    await asyncio.wait_for(fenced.wait(), PATIENCE_S)
    await keeper
    assert (await open_cluster_journal(client, "default", "train-journal")).read()[0] == b"new"


async def test_a_deleted_config_map_is_created_again(client: ApiClient) -> None:
    journal = await open_cluster_journal(client, "default", "train-journal")
    await client.delete(journal.resource, "train-journal", "default")
    await kept(journal, b"still here")
    again = await open_cluster_journal(client, "default", "train-journal")
    assert again.read()[0] == b"still here"


async def test_a_missing_namespace_is_named(client: ApiClient) -> None:
    with pytest.raises(JournalError, match="nowhere/train-journal"):
        await open_cluster_journal(client, "nowhere", "train-journal")
