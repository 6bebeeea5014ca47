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
from gangline.api.resources import CONFIG_MAPS
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.kube.errors import ApiError

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


def fill_up(ballast: Path, room: int = 0) -> None:
    """Fill the disk until ``room`` bytes are free."""
    disk = os.statvfs(ballast.parent)
    with ballast.open("ab", buffering=0) as file:
        missing = disk.f_bavail * disk.f_frsize - room
        with contextlib.suppress(OSError):
            while missing > 0:
                missing -= file.write(b"x" * min(1 << 20, missing))
