"""Ranks of an ElasticJob that keep running while another one, and another pod, is replaced."""

import asyncio
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from gangline.api.resources import ELASTIC_JOBS, PODS
from integration.cluster.embedded import EmbeddedCluster, until
from integration.elastic.elastic_jobs import elastic_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = Path(str(getattr(find_spec("integration.elastic.launcher.survivor_script"), "origin", "")))
LAUNCHER = (
    "--nnodes 1:2 --nproc-per-node 1 --rdzv-conf last_call_timeout=100 "
    "{folder}/train.py survive 1000000 {folder}"
)


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
        await client.delete(PODS, "train-edljob-worker-1", "default")
        await until(lambda: has_processes([1, 3]), 120, shared_cluster.said)
        await until(lambda: says("the world grew to 2 ranks at step "), 60, shared_cluster.said)
