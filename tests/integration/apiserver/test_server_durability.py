"""The state of a server that was killed: revisions, watches, and a file that is damaged."""

import asyncio
from pathlib import Path

from apiserver_process import refusal, start
from gangline.api import resources
from gangline.api.core import core
from gangline.api.meta.objects import ObjectMeta
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config


def connect(data: Path) -> ApiClient:
    return ApiClient(load_config(str(data / "kubeconfig")), user_agent="writer")


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


async def test_damaged_file_is_reported_with_a_remedy(tmp_path: Path):
    (tmp_path / "state.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    refused = await refusal(tmp_path)
    assert "damaged" in refused
    assert "restore it from a copy" in refused
    assert "Traceback" not in refused
