"""``gangline up`` is killed again and again while clients write and a job runs."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from gangline.api.core import core
from gangline.api.meta.objects import ObjectMeta
from gangline.api.resources import CONFIG_MAPS, PYTORCH_JOBS
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, Unreachable
from integration.cluster.embedded import EmbeddedCluster, embedded, running, until

DEATHS = 10
SEED = 20
ORPHANS_END_WITHIN_S = 2.5


def job(shared: Path, mark: str) -> dict[str, object]:
    """Two replicas that run, under a name found among processes, until a file appears."""
    wait = f"while [ ! -e /shared/go ]; do sleep 0.{mark}; done"
    container = {
        "name": "pytorch",
        "image": "none",
        "command": ["sh", "-c", wait],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    volume = {"name": "shared", "hostPath": {"path": str(shared)}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    template = {"spec": spec}
    role = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "patient"},
        "spec": {"pytorchReplicaSpecs": {"Master": role, "Worker": role}},
    }


async def write(client: ApiClient, number: int, kept: set[str]) -> None:
    """Create objects until the server is killed; ``kept`` gets the acknowledged ones."""
    while True:
        name = f"m{number}-{len(kept)}"
        body = core.ConfigMap(metadata=ObjectMeta(name=name), data={"a": name})
        try:
            await client.create(CONFIG_MAPS, body, "default")
        except (ApiError, Unreachable):
            return
        kept.add(name)


async def submit(client: ApiClient, manifest: dict[str, object]) -> None:
    """Create the job, as soon as the kind is served."""

    async def created() -> bool:
        try:
            await client.create(PYTORCH_JOBS, manifest, "default")
        except ApiError as error:
            return error.status.reason == "AlreadyExists"
        return True

    await until(created)


async def one_life(cluster: EmbeddedCluster, life: int, kept: set[str], delay_s: float) -> None:
    """Check that all objects exist, then write until the cluster is killed."""
    async with cluster.client() as client:
        names = {m.metadata.name for m in (await client.list(CONFIG_MAPS, "default")).items}
        assert kept <= names, f"lost after {life} deaths: {sorted(kept - names)}"
        async with asyncio.TaskGroup() as group:
            writers = [set[str](), set[str]()]
            for number, mine in enumerate(writers):
                group.create_task(write(client, 2 * life + number, mine))
            # The only timer of this test: it chooses the moment of the kill.
            await asyncio.sleep(delay_s)
            await cluster.end(signal.SIGKILL)
        kept.update(*writers)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_ten_deaths_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    mark = f"1{os.getpid()}"
    shared, kept = tmp_path / "shared", set[str]()
    shared.mkdir()
    async with embedded(tmp_path / "home", "--nodes", "2") as cluster:
        async with cluster.client() as client:
            await submit(client, job(shared, mark))

        async def gone() -> bool:
            return not running(f"sleep 0.{mark}")

        for life in range(DEATHS):
            await one_life(cluster, life, kept, dice.uniform(0.0, 1.5))
            await until(gone, ORPHANS_END_WITHIN_S, lambda: running(f"sleep 0.{mark}"))
            await cluster.start()
        assert len(kept) > DEATHS
        (shared / "go").touch()
        async with cluster.client() as client:

            async def succeeded() -> bool:
                ended = await client.get(PYTORCH_JOBS, "patient", "default")
                return any(
                    c.type == "Succeeded" and c.status == "True" for c in ended.status.conditions
                )

            await until(succeeded, 60.0, lambda: cluster.run("get", "patient").stdout)
        assert cluster.run("down").returncode == 0
        assert cluster.left_behind() == []
