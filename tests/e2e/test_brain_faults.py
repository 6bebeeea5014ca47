"""The Brain beside a job whose facts the tests write: its advice, and a wrong clock.

The job is real, and its pods sleep.

Takes 25 s: the Brain is started twice, and each change is observed.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.brain_jobs import TestedBrain, address, allow_all, brain
from e2e.proxy import FaultyProxy
from e2e.scenario import Scenario
from e2e.test_elastic_job import elastic_job
from e2e.waiting import eventually
from gangline.api.brain.job_advice import JobAdvice
from gangline.api.jobs.training_facts import FACTS_KEY, facts_name
from gangline.api.resources import CONFIG_MAPS, ELASTIC_JOBS, JOB_ADVICE
from gangline.kube.errors import NotFound

pytest.importorskip("sqlalchemy", reason="the Brain needs the extra gangline[brain]")

NAME = "sleepers-1"
WORKERS = 2


@pytest.fixture
async def job(scenario: Scenario) -> Scenario:
    """A running job that the Brain may change; its facts are those of a training."""
    elastic = await sleepers(scenario, WORKERS)
    await publish(elastic, segments())
    return elastic


async def sleepers(scenario: Scenario, workers: int) -> Scenario:
    """A running job whose master reports nothing."""
    elastic = scenario.of(ELASTIC_JOBS)
    written = elastic_job(scenario, NAME, workers, "never", "10m")
    await elastic.submit(written)

    async def has_facts() -> bool:
        try:
            await scenario.client.get(CONFIG_MAPS, facts_name(NAME), scenario.namespace)
        except NotFound:
            return False
        return True

    await eventually(has_facts, "the operator has created the ConfigMap of the facts")
    await elastic.running(NAME, workers + 1)
    return elastic


def segments(**changes: Any) -> list[dict[str, Any]]:
    """Four minutes of a training with 2 workers; the last ended just now."""
    now = round(time.time() * 1000)
    facts = {
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
    }
    return [
        facts | {"since": now - (n + 1) * 60_000, "until": now - n * 60_000} | changes
        for n in (3, 2, 1, 0)
    ]


async def publish(job: Scenario, segments: Any, **more: Any) -> None:
    """Write facts as the master does."""
    text = json.dumps({"v": 1, "segments": segments, **more})
    name = facts_name(NAME)
    await job.client.patch(CONFIG_MAPS, name, {"data": {FACTS_KEY: text}}, job.namespace)


async def advice(job: Scenario) -> JobAdvice | None:
    """The present advice; None while there is none."""
    try:
        return await job.client.get(JOB_ADVICE, NAME, job.namespace)
    except NotFound:
        return None


async def advised_workers(job: Scenario, observed: TestedBrain, held: str = "") -> float:
    """Wait for advice on workers, and with ``held`` for a reason with this text."""

    async def found() -> float | None:
        present = await advice(job)
        items = present.status.items if present is not None else []
        values = [
            each.value
            for each in items
            if each.what == "workers" and held in (each.held_because or "")
        ]
        return values[0] if values else None

    value = await eventually(found, f"advice on workers {held}; {observed.said()}")
    assert value is not None
    return value


async def test_what_only_a_running_job_reports_becomes_advice(
    scenario: Scenario, tmp_path: Path
) -> None:
    workers = 6
    job = await sleepers(scenario, workers)
    now = round(time.time() * 1000)
    names = sorted(name for name in await job.pods(NAME) if "worker" in name)
    ranks = [
        {"name": name, "rank": rank, "computeSeconds": [1.3 if rank == 4 else 1 + rank / 1000] * 6}
        for rank, name in enumerate(names)
    ]
    reported = segments(
        nodes=workers,
        procs=workers,
        saveSeconds=60.0,
        saveIntervalSeconds=600.0,
    )
    with brain(job, tmp_path) as observed:
        await address(observed)
        await publish(job, reported, windowsSince=now - 6 * 60_000, ranks=ranks)

        async def advised() -> dict[str, Any]:
            present = await advice(job)
            items = present.status.items if present is not None else []
            found = {each.what: each for each in items}
            return found if {"node", "checkpoint_interval"} <= set(found) else {}

        items = await eventually(advised, f"advice on what is reported; {observed.said()}")
        slow = (await job.pods(NAME))[names[4]].spec.node_name
        assert slow in items["node"].sentence
        assert items["checkpoint_interval"].was == 600.0


async def test_a_clock_that_differs_from_the_servers_holds_all_changes(
    job: Scenario, tmp_path: Path
) -> None:
    await allow_all(job)
    proxy = FaultyProxy(job.cluster.kubeconfig)
    proxy.date_skew_s = 120
    await proxy.start()
    try:
        with brain(job, tmp_path, kubeconfig=proxy.kubeconfig(tmp_path)) as observed:
            await address(observed)
            await advised_workers(job, observed, held="clock")
            assert await observed.plans(NAME) == []
            proxy.date_skew_s = 0
            await publish(job, segments())
            assert await observed.plan_number(NAME, 1) == 2 * WORKERS
    finally:
        await proxy.stop()
