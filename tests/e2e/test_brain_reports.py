"""The Brain beside a job whose facts the test writes, and whose pods sleep: its advice."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.brain_jobs import address, brain
from e2e.scenario import Scenario
from e2e.test_elastic_job import elastic_job
from e2e.waiting import eventually
from gangline.api.jobs.training_facts import FACTS_KEY, facts_name
from gangline.api.resources import CONFIG_MAPS, ELASTIC_JOBS, JOB_ADVICE
from gangline.kube.errors import NotFound

pytest.importorskip("sqlalchemy", reason="the Brain needs the extra gangline[brain]")

NAME = "sleepers-1"
WORKERS = 6
MINUTE_MS = 60_000


@pytest.fixture
async def job(scenario: Scenario) -> Scenario:
    """A running job whose master reports nothing."""
    elastic = scenario.of(ELASTIC_JOBS)
    await elastic.submit(elastic_job(scenario, NAME, WORKERS, "never", "10m"))

    async def has_facts() -> bool:
        try:
            await scenario.client.get(CONFIG_MAPS, facts_name(NAME), scenario.namespace)
        except NotFound:
            return False
        return True

    await eventually(has_facts, "the operator has created the ConfigMap of the facts")
    await elastic.running(NAME, WORKERS + 1)
    return elastic


def facts(names: list[str]) -> str:
    """What a master writes after four minutes: each save takes long, and rank 4 is slow."""
    now = round(time.time() * 1000)
    segment = {
        "round": 1,
        "nodes": WORKERS,
        "procs": WORKERS,
        "steps": 60,
        "stepSeconds": {"count": 60, "mean": 1.0, "m2": 0.001},
        "computeSeconds": 0.98,
        "syncSeconds": 0.01,
        "microBatch": 4,
        "accumulation": 8,
        "globalBatch": 64,
        "saveSeconds": 60.0,
        "saveIntervalSeconds": 600.0,
    }
    segments = [
        segment | {"since": now - (n + 1) * MINUTE_MS, "until": now - n * MINUTE_MS}
        for n in (3, 2, 1, 0)
    ]
    ranks = [
        {"name": name, "rank": rank, "computeSeconds": [1.3 if rank == 4 else 1 + rank / 1000] * 6}
        for rank, name in enumerate(names)
    ]
    since = now - 6 * MINUTE_MS
    return json.dumps({"v": 1, "segments": segments, "windowsSince": since, "ranks": ranks})


async def test_what_only_a_running_job_reports_becomes_advice(
    job: Scenario, tmp_path: Path
) -> None:
    names = sorted(name for name in await job.pods(NAME) if "worker" in name)
    with brain(job, tmp_path) as observed:
        await address(observed)
        change = {"data": {FACTS_KEY: facts(names)}}
        await job.client.patch(CONFIG_MAPS, facts_name(NAME), change, job.namespace)

        async def advised() -> dict[str, Any]:
            try:
                present = await job.client.get(JOB_ADVICE, NAME, job.namespace)
            except NotFound:
                return {}
            found = {each.what: each for each in present.status.items}
            return found if {"node", "checkpoint_interval"} <= set(found) else {}

        items = await eventually(advised, f"advice on what is reported; {observed.said()}")
        slow = (await job.pods(NAME))[names[4]].spec.node_name
        assert slow in items["node"].sentence
        assert items["checkpoint_interval"].was == 600.0
