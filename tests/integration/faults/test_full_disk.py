"""A full disk: writes are refused with a message, no acknowledged write is lost, it recovers."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apiserver_process import start
from gangline.api.core import core
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import CONFIG_MAPS, PODS
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.errors import ApiError
from integration.cluster.embedded import embedded, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk"),
]

DISK_BYTES = 80 << 20  # a start needs 64 MiB
ROOM_BYTES = 5 << 20
INTERNAL_ERROR = 500


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


async def fill(client: ApiClient, kept: set[str]) -> ApiError:
    """Write until a write is refused; ``kept`` gets the acknowledged ones."""
    for number in range(1000):
        name = f"big-{len(kept)}-{number}"
        body = core.ConfigMap(metadata=ObjectMeta(name=name), data={"x": "x" * 200_000})
        try:
            await client.create(CONFIG_MAPS, body, "default")
        except ApiError as error:
            return error
        kept.add(name)
    raise AssertionError("the disk never became full")


async def stored(client: ApiClient) -> set[str]:
    return {each.metadata.name for each in (await client.list(CONFIG_MAPS, "default")).items}


async def test_full_disk_is_reported_and_loses_nothing(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    fill_up(ballast, ROOM_BYTES)
    data = small_disk / "state"
    server, kept = await start(data), set[str]()
    try:
        async with ApiClient(load_config(str(data / "kubeconfig"))) as client:
            refused = await fill(client, kept)
            assert refused.status.code == INTERNAL_ERROR, refused
            assert "full" in str(refused)
            assert "free" in str(refused)
            assert kept <= await stored(client)
            ballast.unlink()
            again = core.ConfigMap(metadata=ObjectMeta(name="after"), data={"a": "b"})
            await client.create(CONFIG_MAPS, again, "default")
            kept.add("after")
        server.kill()
        await server.wait()
        server = await start(data)
        async with ApiClient(load_config(str(data / "kubeconfig"))) as client:
            assert kept <= await stored(client)
    finally:
        server.kill()
        await server.wait()


def talker(name: str, command: str) -> dict[str, object]:
    """A pod of one container."""
    container = {"name": "c", "image": "none", "command": ["sh", "-c", command]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def test_a_log_that_fills_the_disk_does_not_end_the_cluster(
    small_disk: Path,
) -> None:
    root = small_disk / "home"
    ballast = small_disk / "ballast"
    async with embedded(root) as cluster, cluster.client() as client:
        fill_up(ballast, ROOM_BYTES)
        await client.create(PODS, talker("chatty", "yes | head -c 20000000; sleep 300"), "default")

        async def is_full() -> bool:
            room = os.statvfs(small_disk)
            return room.f_bavail * room.f_frsize < 64 << 10

        try:
            await until(is_full, within_s=3.0)
        except AssertionError:  # the log was rotated in time: another file fills the disk
            fill_up(ballast)
        assert (await client.get(PODS, "chatty", "default")).metadata.name == "chatty"
        ballast.unlink(missing_ok=True)

        def make_room() -> None:
            """Again and again: a log whose writer is not done yet fills the disk once more."""
            for log in (root / "clusters").rglob("*.log"):
                os.truncate(log, 0)

        async def writes_again() -> bool:
            make_room()
            try:
                await client.create(PODS, talker("after", "true"), "default")
            except ApiError:
                return False
            return True

        await until(writes_again, explain=cluster.said)

        async def ended() -> bool:
            make_room()
            return (await client.get(PODS, "after", "default")).status.phase == "Succeeded"

        await until(ended, within_s=30.0, explain=cluster.said)
        assert cluster.process is not None
        assert cluster.process.poll() is None


def fill_up(ballast: Path, room: int = 0) -> None:
    """Fill the disk until ``room`` bytes are free."""
    disk = os.statvfs(ballast.parent)
    with ballast.open("ab", buffering=0) as file:
        missing = disk.f_bavail * disk.f_frsize - room
        with contextlib.suppress(OSError):
            while missing > 0:
                missing -= file.write(b"x" * min(1 << 20, missing))
