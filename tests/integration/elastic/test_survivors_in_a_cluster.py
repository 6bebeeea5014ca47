"""Ranks of an ElasticJob that keep running while another one, and another pod, is replaced.

Takes 60 s: four processes and three pods start one after the other.
"""

import asyncio
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from gangline.api.resources import ELASTIC_JOBS, PODS, SCALE_PLANS
from gangline.kube.client.client import ApiClient
from integration.cluster.embedded import EmbeddedCluster, until
from integration.elastic.elastic_jobs import elastic_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

SCRIPT = Path(str(getattr(find_spec("integration.elastic.launcher.survivor_script"), "origin", "")))
LAUNCHER = (
    "--nnodes 1:2 --nproc-per-node 1 --rdzv-conf last_call_timeout=100 "
    "{folder}/train.py survive 1000000 {folder} :1:step:FAULT"
)
FIRST = "train-edljob-worker-0"


async def other_pod(client: ApiClient) -> str:
    """Return the pod of rank 1."""
    pods = (await client.list(PODS, "default")).items
    (name,) = (
        pod.metadata.name
        for pod in pods
        if "-worker-" in pod.metadata.name
        and pod.metadata.name != FIRST
        and not (pod.metadata.deletion_timestamp or pod.status.phase == "Failed")
    )
    return name


async def evict_as_a_drain_does(client: ApiClient, _: Path) -> None:
    await client.evict(await other_pod(client), "default")


async def move_as_the_brain_does(client: ApiClient, _: Path) -> None:
    pod = {"name": await other_pod(client), "type": "worker", "rankIndex": 1}
    plan = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {"name": "move"},
        "spec": {"ownerJob": "train", "migratePods": [pod]},
    }
    await client.create(SCALE_PLANS, plan, "default")


async def break_a_device(_: ApiClient, folder: Path) -> None:
    (folder / "go-0").touch()


async def test_a_rank_and_a_pod_are_replaced_while_the_other_rank_runs(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    shutil.copy(SCRIPT, folder / "train.py")

    async def has_processes(counts: list[int]) -> bool:
        lines = [file.read_text().split() for file in folder.glob("steps-*")]
        ranks = [line[3] for line in lines if len(line) > 3]
        return [ranks.count("0"), ranks.count("1")] == counts

    async def says(text: str) -> bool:
        return text in (await asyncio.to_thread(shared_cluster.run, "get", "train")).stdout

    async with shared_cluster.client() as client:
        job = elastic_job(folder, LAUNCHER.format(folder=folder), 2)
        await client.create(ELASTIC_JOBS, job, "default")
        await until(lambda: has_processes([1, 1]), 120, shared_cluster.said)
        asked = shared_cluster.run("replace", "train", "1", "--reason", "maintenance")
        assert "rank 1 is replaced" in asked.stdout, asked
        await until(lambda: has_processes([1, 2]), 120, shared_cluster.said)
        await until(lambda: says("rank 1 was replaced at step "), 60, shared_cluster.said)
        ways = evict_as_a_drain_does, move_as_the_brain_does, break_a_device
        for number, end_pod in enumerate(ways):
            await end_pod(client, folder)
            await until(
                lambda count=3 + number: has_processes([1, count]), 120, shared_cluster.said
            )  # type: ignore[misc]
            await until(lambda: says("the world grew to 2 ranks at step "), 60, shared_cluster.said)
        log = await asyncio.to_thread(shared_cluster.run, "logs", "train")
        steps = re.findall(r"rank 1 was (?:lost|replaced).*; .* s, (\d+) steps?", log.stdout)
        assert len(steps) == 1 + len(ways), log
        assert {*steps} <= {"0", "1"}
