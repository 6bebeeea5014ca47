"""``gangline backup`` while clients write, and ``gangline restore`` into the same cluster."""

import asyncio
from pathlib import Path

import pytest

from gangline.api.core import core
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import CONFIG_MAPS, SECRETS
from gangline.kube import errors
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, embedded

pytestmark = pytest.mark.slow

WRITERS = 8


async def write_in_order(
    client: ApiClient, writer: int, written: list[int], stop: asyncio.Event
) -> None:
    """Count up in two objects, one after the other: at any moment ``second <= first``."""
    for part in ("first", "second"):
        body = core.ConfigMap(metadata=ObjectMeta(name=f"{part}-{writer}"), data={"n": "0"})
        await client.create(CONFIG_MAPS, body, "default")
    number = 0
    while not stop.is_set():
        number += 1
        for part in ("first", "second"):
            change = {"data": {"n": str(number)}}
            await client.patch(CONFIG_MAPS, f"{part}-{writer}", change, "default")
        written[writer] = number


async def counts(client: ApiClient) -> dict[str, int]:
    maps = (await client.list(CONFIG_MAPS, "default")).items
    return {m.metadata.name: int(m.data["n"]) for m in maps if "n" in m.data}


async def back_up_while_writing(
    cluster: EmbeddedCluster, client: ApiClient, file: Path
) -> tuple[list[int], list[int]]:
    """Return what each writer had finished before the backup began, and after it ended."""
    written, stop = [0] * WRITERS, asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(write_in_order(client, writer, written, stop))
        while min(written) < 3:
            await asyncio.sleep(0.01)
        before = list(written)
        done = await asyncio.to_thread(cluster.run, "backup", str(file))
        assert done.returncode == 0, done.stderr
        assert "store it as a secret" in done.stdout
        after = list(written)
        stop.set()
    return before, after


async def test_backup_of_a_busy_cluster_is_one_moment_and_restores(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    async with embedded(tmp_path / "home") as cluster:
        async with cluster.client() as client:
            secret = {"metadata": {"name": "s"}, "stringData": {"password": "secret"}}
            await client.create(SECRETS, secret, "default")
            before, after = await back_up_while_writing(cluster, client, file)
            last = await client.get(CONFIG_MAPS, "second-0", "default")
        running = cluster.run("restore", str(file), "--force")
        assert running.returncode == 4
        assert "already run" in running.stderr
        await cluster.end()
        refused = cluster.run("restore", str(file))
        assert refused.returncode != 0
        assert "--force" in refused.stderr
        restored = cluster.run("restore", str(file), "--force")
        assert restored.returncode == 0, restored.stderr
        await cluster.start()
        async with cluster.client() as client:
            found = await counts(client)
            for writer in range(WRITERS):
                first, second = found[f"first-{writer}"], found[f"second-{writer}"]
                assert second <= first <= second + 1, "the backup mixes two moments"
                assert before[writer] <= second
                assert first <= after[writer] + 1
            stored = await client.get(SECRETS, "s", "default")
            assert stored.data["password"] == "c2VjcmV0"
            # A client that has seen a later state than the backup's.
            version = last.metadata.resource_version
            watch = client.watch(CONFIG_MAPS, "default", resource_version=version)
            with pytest.raises(errors.Gone):
                await anext(watch)
            change = {"data": {"n": "0"}}
            new = await client.patch(CONFIG_MAPS, "second-0", change, "default")
            assert int(new.metadata.resource_version) > int(version)
