"""A cluster that ends in any way leaves nothing on the machine and loses no stored object.

Takes 35 s: each test starts clusters of its own, and ends them.
"""

import os
import signal
from pathlib import Path

import pytest

from gangline.api.core.pod import Pod
from gangline.api.resources import PODS
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, embedded, running, until

pytestmark = pytest.mark.slow


def sleeper(name: str, seconds: str, policy: str = "Never") -> dict[str, object]:
    """A pod that sleeps for a number of seconds that no other process does."""
    escaped = f"setsid sleep {seconds} & exec sleep {seconds}"
    container = {"name": "c", "image": "none", "command": ["sh", "-c", escaped]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
        },
    }


async def start_sleeper(cluster: EmbeddedCluster, seconds: str, policy: str = "Never") -> None:
    """Run a sleeper and wait until its processes are there."""
    async with cluster.client() as client:
        await client.create(PODS, sleeper("sleeper", seconds, policy), "default")

    async def both_run() -> bool:
        return len([pid for pid in running(f"sleep {seconds}") if _is_sleep(pid)]) >= 2

    await until(both_run, explain=cluster.said)


def _is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except OSError:
        return False


async def gone(seconds: str) -> bool:
    """True if no process of the sleeper is left."""
    return not running(f"sleep {seconds}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
async def test_a_signal_ends_all_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    seconds = f"{os.getpid()}.{int(number)}"
    async with embedded(tmp_path / "home") as cluster:
        await start_sleeper(cluster, seconds)
        assert await cluster.end(number) == 0, cluster.said()
        assert cluster.left_behind() == []
        assert await gone(seconds)


async def test_killed_cluster_restarts_with_its_objects_and_pods(
    tmp_path: Path,
) -> None:
    seconds = f"{os.getpid()}.99"
    async with embedded(tmp_path / "home") as cluster:
        await start_sleeper(cluster, seconds, policy="Always")
        async with cluster.client() as client:
            # A run that is not in any status yet cannot be counted.
            await until(lambda: runs(client), explain=cluster.said)
        await cluster.end(signal.SIGKILL)
        await until(lambda: gone(seconds), within_s=3.0)
        await cluster.start()

        async with cluster.client() as client:
            pod = await until(lambda: runs(client, restarts=1), explain=cluster.said)
        assert pod.status.container_statuses[0].last_state.terminated is not None
        assert pod.status.container_statuses[0].last_state.terminated.exit_code == 137


async def runs(client: ApiClient, restarts: int = 0) -> Pod | None:
    """Wait until the sleeper runs after this number of restarts, and return it."""
    pod = await client.get(PODS, "sleeper", "default")
    statuses = pod.status.container_statuses
    does = statuses and statuses[0].restart_count == restarts and statuses[0].state.running
    return pod if does else None
