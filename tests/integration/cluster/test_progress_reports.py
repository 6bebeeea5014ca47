"""Pods of real processes report their progress, and commands show it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gangline.api.resources import CONFIG_MAPS, PYTORCH_JOBS, TRAIN_JOBS
from integration.cluster.embedded import EmbeddedCluster, embedded, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PROGRAM = """
import json, os, ssl, time, urllib.request
trusted = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
while True:
    with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as file:
        headers = {"Authorization": "Bearer " + file.read()}
    metrics = [{"name": "loss", "value": "0.25"}]
    status = {"progressPercentage": 40, "estimatedRemainingSeconds": 130, "metrics": metrics}
    status["lastUpdatedTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    body = json.dumps({"trainerStatus": status}).encode()
    url = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
    request = urllib.request.Request(url, body, headers)
    print(urllib.request.urlopen(request, context=trusted).status, flush=True)
    time.sleep(0.5)
"""
COMMAND = ["python3", "-c", PROGRAM]
TRAIN_JOB = {
    "metadata": {"name": "new"},
    "spec": {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {
            "image": "x",
            "command": COMMAND,
            "numNodes": 1,
            "resourcesPerNode": {"requests": {"cpu": "100m"}},
        },
    },
}
CONTAINER = {"name": "pytorch", "image": "x", "command": COMMAND}
PYTORCH_JOB = {
    "metadata": {"name": "old"},
    "spec": {
        "pytorchReplicaSpecs": {"Master": {"template": {"spec": {"containers": [CONTAINER]}}}}
    },
}


async def shows_progress(cluster: EmbeddedCluster) -> None:
    async def shown() -> bool:
        listed = await asyncio.to_thread(cluster.run, "list")
        lines = listed.stdout.splitlines()
        return len(lines) == 3 and all("40%, 2:10 left" in line for line in lines[1:])

    def explain() -> str:
        logs = [cluster.run("logs", name).stderr for name in ("old", "new")]
        return f"{cluster.run('list').stdout}\n{logs}"

    await until(shown, explain=explain)


async def test_reports_of_pods_reach_every_command(shared_cluster: EmbeddedCluster) -> None:
    async with shared_cluster.client() as client:
        await client.create(TRAIN_JOBS, TRAIN_JOB, "default")
        await client.create(PYTORCH_JOBS, PYTORCH_JOB, "default")
        await shows_progress(shared_cluster)
        for name in ("old", "new"):
            page = shared_cluster.run("get", name).stdout
            assert "Progress:   40%, 2:10 left\nMetrics:    loss 0.25\n" in page
            got: dict[str, Any] = json.loads(shared_cluster.run("get", name, "-o", "json").stdout)
            progress = got["progress"]
            assert (progress["percentage"], progress["metrics"]) == (40, {"loss": "0.25"})
            followed = shared_cluster.run("logs", name, "--tail", "1").stdout
            assert followed.strip() == "200"
        # The CAs come back if somebody deletes them.
        await client.delete(CONFIG_MAPS, "gangline-progress-ca", "default")
        await until(lambda: _has_authorities(client))


async def _has_authorities(client: Any) -> bool:
    listed = await client.list(CONFIG_MAPS, "default", fields="metadata.name=gangline-progress-ca")
    return any(entry.data.get("ca.crt") for entry in listed.items)


async def test_reports_arrive_without_networks_of_their_own(tmp_path: Path) -> None:
    async with (
        embedded(tmp_path / "home", "--nodes", "1", "--network", "host") as cluster,
        cluster.client() as client,
    ):
        await client.create(TRAIN_JOBS, TRAIN_JOB, "default")
        await client.create(PYTORCH_JOBS, PYTORCH_JOB, "default")
        await shows_progress(cluster)
