"""A Brain with many running jobs: time of a cycle, processor use, memory.

    python -m benchmarks.brain.load [--jobs 1000] [--pods 10] [--cycles 5]

The evaluator, its advisers, its guard and its history (SQLite) are the real ones. What informers
would have shown is made in memory, and what would be written to the API server is dropped: both
cost the API server more than the Brain. Before each cycle each job closes a segment, which in a
cluster takes five minutes.
"""

import argparse
import asyncio
import json
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gangline.api.job_resources import JOB_KINDS
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.resources import ELASTIC_JOBS
from gangline.brain.collection.collector import Collector, WatchedJob
from gangline.brain.collection.facts_digest import digest_facts
from gangline.brain.collection.job_digest import DigestSettings
from gangline.brain.collection.observations import JobObservations
from gangline.brain.collection.pod_digest import ContainerRun
from gangline.brain.evaluation.evaluator import Evaluator
from gangline.brain.evaluation.history import History
from gangline.brain.facts.records import Job, RoleSize
from gangline.brain.guard.policy import Policy
from gangline.brain.store.engine import open_store

MINUTE_MS = 60_000
SEGMENTS = 12
FAMILIES = 100


class Writes:
    """Stands for the publisher and the events: counts what would be written."""

    def __init__(self) -> None:
        self.published = 0

    async def publish(self, *_: Any) -> None:
        self.published += 1

    async def withdraw(self, *_: Any) -> None:
        """Nothing was published."""

    async def withdraw_ended(self, *_: Any) -> None:
        """Nothing was published."""

    def event(self, *_: Any) -> None:
        """Drop an event."""


def watched_job(number: int, pods: int, now_ms: int) -> WatchedJob:
    """An elastic job that has trained for an hour."""
    name = f"train-{number % FAMILIES}-{number}"
    job = Job(
        cluster="c", uid=f"uid-{number}", namespace=f"team-{number % 20}", name=name,
        stem=f"train-{number % FAMILIES}", kind="ElasticJob", owner=f"user-{number % 50}",
        submitted_ms=now_ms - 60 * MINUTE_MS, started_ms=now_ms - 60 * MINUTE_MS,
        workers_min=1, workers_max=2 * pods, workers_asked=pods, spec_digest=str(number % FAMILIES),
        roles=(RoleSize(role="worker", since_ms=now_ms - 60 * MINUTE_MS, replicas=pods, gpus=1,
                        cpu_millis=8000, memory_bytes=16 << 30),),
    )  # fmt: skip
    observations = JobObservations(job=job, watched_from_start=True)
    for rank in range(pods):
        observations.add_run(
            ContainerRun(
                pod=f"{name}-{rank}", pod_uid=f"{number}-{rank}", role="worker", rank=rank,
                node=f"node-{rank}", started_ms=now_ms - 60 * MINUTE_MS,
                limit_memory_bytes=16 << 30,
            )
        )  # fmt: skip
    meta = ObjectMeta(name=name, namespace=job.namespace, uid=job.uid)
    stored = Object(api_version="elastic.iml.github.io/v1alpha1", kind="ElasticJob", metadata=meta)
    kind = next(kind for kind in JOB_KINDS if kind.resource is ELASTIC_JOBS)
    return WatchedJob(kind=kind, meta=meta, observations=observations, stored=stored)


def facts(number: int, pods: int, now_ms: int, count: int) -> str:
    """What the master of a job publishes: its last segments and its pods."""
    step = 0.5 + number % 7 / 10
    segments = [
        {
            "round": 1, "since": now_ms - (n + 1) * 5 * MINUTE_MS,
            "until": now_ms - n * 5 * MINUTE_MS, "nodes": pods, "procs": pods,
            "steps": round(300 / step), "microBatch": 8, "accumulation": 1,
            "globalBatch": 8 * pods, "deviceModel": "A100-40GB", "computeSeconds": 0.8 * step,
            "stepSeconds": {"count": 300, "mean": step * (1 + n % 3 / 100), "m2": 0.01},
            "syncSeconds": 0.2 * step, "memoryPeak": {"A100-40GB": 20 << 30},
        }
        for n in reversed(range(count))
    ]  # fmt: skip
    used = [
        {
            "name": f"train-{number % FAMILIES}-{number}-{rank}", "rank": rank,
            "since": now_ms - 60 * MINUTE_MS, "until": now_ms, "samples": 60,
            "peakMemoryBytes": (8 << 30) + rank, "cpuMillisP50": 3000, "cpuMillisP95": 4000,
            "cpuMillisMax": 5000,
        }
        for rank in range(pods)
    ]  # fmt: skip
    return json.dumps({"v": 1, "segments": segments, "pods": used})


async def measure(jobs: int, pods: int, cycles: int, folder: Path) -> None:
    now_ms = round(time.time() * 1000)
    transport = SimpleNamespace(clock_skew_s=lambda: 0.0)
    client: Any = SimpleNamespace(transport=transport)
    writes: Any = Writes()
    store = open_store(f"sqlite:///{folder / 'brain.db'}", migrate=True)
    collector = Collector(client, DigestSettings(cluster="c", digest=store.digest))
    history = History(store, "c")
    async with store:
        await history.lead("benchmark")
        policies: Any = SimpleNamespace(policy=Policy())
        evaluator = Evaluator(client, collector, history, policies, writes, writes, cluster="c")
        for number in range(jobs):
            watched = watched_job(number, pods, now_ms)
            watched.observations.add_facts(
                digest_facts(facts(number, pods, now_ms, SEGMENTS), now_ms)
            )
            collector.jobs[watched.meta.uid] = watched
        for cycle in range(cycles):
            until_ms = now_ms + cycle * 5 * MINUTE_MS
            for number, watched in enumerate(collector.jobs.values()):
                digested = digest_facts(facts(number, pods, until_ms, 1), until_ms)
                watched.observations.add_facts(digested)
            began, used = time.perf_counter(), time.process_time()
            await evaluator.cycle()
            took, used = time.perf_counter() - began, time.process_time() - used
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(
                f"cycle {cycle + 1}: {took:.2f} s, {used:.2f} s of processor time, {rss} MB, "
                f"{writes.published} advised",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10)
    parser.add_argument("--cycles", type=int, default=5)
    given = parser.parse_args() if __name__ == "__main__" else parser.parse_args([])
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(given.jobs, given.pods, given.cycles, Path(folder)))


if __name__ == "__main__":
    main()
