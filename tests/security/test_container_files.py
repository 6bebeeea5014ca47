"""Links and pipes that a container plants where the kubelet, as root, creates or reads files."""

import asyncio
import os
import shutil
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.api.core.pod import Pod
from gangline.api.core.pod_status import ContainerStatus
from gangline.api.resources import EVENTS, PODS
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, cluster_of_module, until

VOLUMES = [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]


@pytest.fixture(scope="module")
def visible_cluster() -> Iterator[EmbeddedCluster]:
    """A cluster in a folder that pods see: their /tmp is private."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    with cluster_of_module(folder / "home") as running:
        yield running
    shutil.rmtree(folder)


@pytest.fixture
async def cluster(visible_cluster: EmbeddedCluster) -> AsyncIterator[EmbeddedCluster]:
    """The cluster of this module; the test's pod and events are deleted after it."""
    yield visible_cluster
    async with visible_cluster.client() as client:
        await client.delete(PODS, "p", "default", grace_seconds=0)
        await client.request_json("DELETE", "/api/v1/namespaces/default/events")
    kept = visible_cluster.home.folder / "kubelet"

    async def forgotten() -> bool:
        return not [*kept.glob("*/pods/*"), *kept.glob("*/logs/*/c")]

    await until(forgotten)


@pytest.fixture
def outside(visible_cluster: EmbeddedCluster) -> Iterator[Path]:
    """A folder of the machine that the kubelet must not write to."""
    folder = visible_cluster.root.parent / "outside"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def shell(script: str, *mounts: dict[str, Any], name: str = "c", **more: Any) -> dict[str, Any]:
    command = ["sh", "-c", script]
    return {"name": name, "image": "any", "command": command, "volumeMounts": mounts, **more}


async def run_pod(client: ApiClient, plant: str, container: dict[str, Any]) -> None:
    """Run a pod whose init container prepares the volume ``v``, mounted at /v."""
    first = shell(f"cd /v; {plant}", {"name": "v", "mountPath": "/v"}, name="plant")
    spec = {
        "initContainers": [first],
        "containers": [container],
        "volumes": VOLUMES,
        "restartPolicy": "Never",
    }
    await client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")


async def status_of(client: ApiClient) -> ContainerStatus | None:
    pod: Pod = await client.get(PODS, "p", "default")
    return next(iter(pod.status.container_statuses), None)


async def until_ended(client: ApiClient) -> ContainerStatus:
    async def ended() -> ContainerStatus | None:
        status = await status_of(client)
        return status if status is not None and status.state.terminated is not None else None

    found = await until(ended, 60)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "mount",
    [
        {"subPath": "link/new"},
        {"subPath": "link"},
        {"subPathExpr": "$(WHERE)"},
        {"subPath": "relative/new"},
    ],
)
async def test_part_of_a_volume_that_leads_out_is_refused(
    cluster: EmbeddedCluster, outside: Path, mount: dict[str, str]
) -> None:
    body = shell(
        "true",
        {"name": "v", "mountPath": "/data", **mount},
        env=[{"name": "WHERE", "value": "link/by/variable"}],
    )
    up = "../" * 30 + str(outside).lstrip("/")
    async with cluster.client() as client:
        await run_pod(client, f"ln -s {outside} link; ln -s {up} relative", body)

        async def refused() -> str:
            events = (await client.list(EVENTS, "default")).items
            return next((each.message for each in events if "subPath" in each.message), "")

        message = await until(refused, 60)
        assert 'of volumeMount "v": it leads out of the volume' in message

        async def waits() -> bool:
            status = await status_of(client)
            waiting = status and status.state.waiting
            return bool(waiting and waiting.reason == "CreateContainerConfigError")

        await until(waits, 60)
    assert os.listdir(outside) == []


async def test_mount_points_behind_links_are_not_made_on_the_machine(
    cluster: EmbeddedCluster, outside: Path
) -> None:
    body = shell(
        "echo message >/v/link/message; test -d /v/link/folder/deep",
        {"name": "v", "mountPath": "/v"},
        {"name": "w", "mountPath": "/v/link/folder/deep"},
        terminationMessagePath="/v/link/message",
        workingDir="/v/link/work",
    )
    async with cluster.client() as client:
        await run_pod(client, f"ln -s {outside} link", body)
        status = await until_ended(client)
    assert status.state.terminated is not None
    assert (status.state.terminated.exit_code, status.state.terminated.message) == (0, "message\n")
    assert os.listdir(outside) == []


@pytest.mark.parametrize("trap", ["mkfifo $f", "ln -s /etc/passwd $f", "mkdir $f"])
async def test_message_is_read_from_a_file_only(cluster: EmbeddedCluster, trap: str) -> None:
    """The container sees the machine's files, so it can replace the file behind the mount."""
    pods = f"{cluster.home.folder}/kubelet/*/pods/*/containers/c/0/termination-log"
    # In the container the file is a mount point, which cannot be removed; its folder is none.
    script = (
        f"f=$(echo {pods}); d=${{f%/*}}; mv $d $d.old; mkdir $d; {trap}; "
        "test -p $f || test -L $f || test -d $f"
    )
    async with cluster.client() as client:
        await run_pod(client, "true", shell(script))
        status = await until_ended(client)
    ended = status.state.terminated
    assert ended is not None
    assert ended.exit_code == 0, "the trap was not set"
    assert ended.message.startswith("Error on reading termination log: ")
    assert "root:" not in ended.message


async def test_message_has_at_most_four_kilobytes(cluster: EmbeddedCluster) -> None:
    big = "(head -c 100000 /dev/zero | tr '\\0' x; echo end) >/dev/termination-log"
    async with cluster.client() as client:
        await run_pod(client, "true", shell(big))
        ended = (await until_ended(client)).state.terminated
        assert ended is not None
        assert (len(ended.message), ended.message[-5:]) == (4096, "xend\n")


@pytest.mark.parametrize("trap", ["mkfifo $f", "ln -s /etc/passwd $f"])
async def test_log_is_read_from_a_file_only(cluster: EmbeddedCluster, trap: str) -> None:
    logs = f"{cluster.home.folder}/kubelet/*/logs/*/c/0.log"
    script = f"f=$(echo {logs}); mv $f $f.old; {trap}; test -p $f || test -L $f"
    async with cluster.client() as client:
        await run_pod(client, "true", shell(script))
        ended = (await until_ended(client)).state.terminated
        assert ended is not None
        assert ended.exit_code == 0, "the trap was not set"
        command = ["kubectl", "logs", "p", "--request-timeout=20s"]
        shown = await asyncio.create_subprocess_exec(
            *command, env=cluster.environment, stdout=PIPE, stderr=PIPE
        )
        out, _ = await shown.communicate()
        assert shown.returncode == 1
        assert out == b""
        # A kubelet that waits for a writer of the pipe reports nothing any more.
        assert (await client.get(PODS, "p", "default")).status.phase == "Succeeded"
