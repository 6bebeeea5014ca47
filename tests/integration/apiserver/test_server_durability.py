"""Acknowledged writes survive a kill of the server at any moment.

Takes 30 s: the server is killed at many moments, with real fsync.
"""

import asyncio
import signal
from pathlib import Path

import pytest

from apiserver_process import refusal, start
from gangline.api import resources
from gangline.api.core import core
from gangline.api.meta.objects import ObjectMeta
from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config

WRITERS = 4


def connect(data: Path) -> ApiClient:
    return ApiClient(load_config(str(data / "kubeconfig")), user_agent="writer")


async def write_until_it_dies(client: ApiClient, writer: int, kept: dict[str, str]) -> None:
    """Create, change and delete; ``kept`` has the acknowledged state."""
    number = 0
    while True:
        name = f"w{writer}-{number}"
        body = core.ConfigMap(metadata=ObjectMeta(name=name), data={"n": str(number)})
        try:
            await client.create(resources.CONFIG_MAPS, body, "default")
            kept[name] = str(number)
            if number % 3 == 0:
                change = {"data": {"n": f"{number}-changed"}}
                # Until the response, either of the two states may be stored.
                kept[name] = ""
                await client.patch(resources.CONFIG_MAPS, name, change, "default")
                kept[name] = f"{number}-changed"
            if number % 5 == 4:
                del kept[name]
                await client.delete(resources.CONFIG_MAPS, name, "default")
                kept[name] = "removed"
        except (errors.Unreachable, errors.ServerTimeout):
            return
        number += 1


@pytest.mark.slow
async def test_every_acknowledged_write_survives_a_kill(tmp_path: Path):
    data = tmp_path / "state"
    for writes in (6, 40, 120):
        process = await start(data)
        kept: dict[str, str] = {}
        async with connect(data) as client, asyncio.TaskGroup() as group:
            before = {m.metadata.name for m in await all_maps(client)}
            for writer in range(WRITERS):
                group.create_task(write_until_it_dies(client, writer + 10 * len(before), kept))
            while len(kept) < writes:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        await process.wait()
        process = await start(data)
        async with connect(data) as client:
            stored = {m.metadata.name: m.data["n"] for m in await all_maps(client)}
        process.terminate()
        assert await process.wait() == 0
        assert len(kept) >= writes
        assert before <= stored.keys()
        for name, value in kept.items():
            if value == "removed":
                assert name not in stored
            elif value:
                assert stored[name] == value
            else:
                assert name in stored


async def all_maps(client: ApiClient) -> list[core.ConfigMap]:
    return list((await client.list(resources.CONFIG_MAPS, "default")).items)


async def test_revisions_go_on_and_watches_resume_after_a_restart(tmp_path: Path):
    process = await start(tmp_path)
    async with connect(tmp_path) as client:
        first = await client.create(
            resources.CONFIG_MAPS, core.ConfigMap(metadata=ObjectMeta(name="a")), "default"
        )
        await client.delete(resources.CONFIG_MAPS, "a", "default")
    process.kill()
    await process.wait()
    process = await start(tmp_path)
    async with connect(tmp_path) as client, asyncio.timeout(10):
        async for event in client.watch(
            resources.CONFIG_MAPS, "default", resource_version=first.metadata.resource_version
        ):
            assert event.type == "DELETED"
            assert int(event.object.metadata.resource_version) > int(
                first.metadata.resource_version
            )
            break
    process.terminate()
    assert await process.wait() == 0


async def test_second_server_on_same_folder_reports_that_it_is_in_use(tmp_path: Path):
    first = await start(tmp_path)
    refused = await refusal(tmp_path)
    first.terminate()
    assert await first.wait() == 0
    assert "in use by another server" in refused


async def test_damaged_file_is_reported_with_a_remedy(tmp_path: Path):
    (tmp_path / "state.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    refused = await refusal(tmp_path)
    assert "damaged" in refused
    assert "restore it from a copy" in refused
    assert "Traceback" not in refused
