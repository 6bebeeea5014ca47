"""A cluster whose / is no mount point, as in a plain chroot: pods use the host's network."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from gangline.api.resources import PODS
from gangline.local import cleanup
from integration.cluster.embedded import EmbeddedCluster, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
]

ENTER = """
set -e
root=$1
shift
for entry in /*; do
    [ -d "$entry" ] && [ ! -L "$entry" ] && mount --rbind "$entry" "$root$entry"
done
exec chroot "$root" "$@"
"""


def prepare_root(root: Path) -> None:
    """Make the folders and links of a root; ``ENTER`` mounts the folders in its own namespace."""
    root.mkdir()
    for entry in Path("/").iterdir():
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            (root / entry.name).mkdir()


async def test_pods_run_on_the_hosts_network(tmp_path: Path) -> None:
    root = tmp_path / "root"
    prepare_root(root)
    wrapper = ("unshare", "--mount", "sh", "-c", ENTER, "sh", str(root))
    tried = await asyncio.to_thread(
        subprocess.run, [*wrapper, "true"], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"no chroot: {tried.stderr.decode()}")
    cluster = EmbeddedCluster(tmp_path / "home", wrapper=wrapper)
    try:
        await cluster.start()
        assert "run as root" not in cluster.said()
        container = {"name": "c", "image": "none", "command": ["true"]}
        pod = {
            "metadata": {"name": "p"},
            "spec": {"containers": [container], "restartPolicy": "Never"},
        }
        async with cluster.client() as client:
            await client.create(PODS, pod, "default")

            async def has_succeeded() -> bool:
                return (await client.get(PODS, "p", "default")).status.phase == "Succeeded"

            await until(has_succeeded, 60, cluster.said)
    finally:
        if cluster.process is not None and cluster.process.poll() is None:
            await cluster.end()
        await cleanup.remove_leftovers(cluster.home.folder)
