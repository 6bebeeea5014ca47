"""A Brain with many running jobs: time of a cycle, processor use, memory.

    python -m benchmarks.brain.load [--jobs 1000] [--pods 10] [--cycles 5] [--ended 3] [--closing 1]

The evaluator, its advisers, its guard and its history (SQLite) are the real ones. What informers
would have shown is made in memory, and what would be written to the API server is dropped: both
cost the API server more than the Brain. Before each cycle each job closes a segment, which in a
cluster takes five minutes. With ``--closing 20`` one job in twenty does, as between two cycles of
a Brain that evaluates every 15 seconds (the default). Each family has some runs that have ended, so
that memory, CPU and the number of workers are advised on in each cycle. The first cycle also reads
the history of each job.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import tempfile
import time
from collections.abc import Sized
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from gangline.api.job_resources import JOB_KINDS
from gangline.api.meta.objects import Object, ObjectMeta
from gangline.api.resources import ELASTIC_JOBS
from gangline.brain.collection.collector import Collector, WatchedJob
from gangline.brain.collection.job_digest import ContainerRun, DigestSettings
from gangline.brain.collection.live_facts import JobObservations, digest_facts
from gangline.brain.evaluation.evaluator import Evaluator
from gangline.brain.evaluation.history import JobHistory
from gangline.brain.facts.records import Outcome, RecordedJob, RoleSize, Run
from gangline.brain.guard.policy import Policy
from gangline.brain.store.engine import open_store
from gangline.cli.event_loop import GC_THRESHOLDS

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
AGE_MS = 30 * MINUTE_MS
SEGMENTS = 6
FAMILIES = 100


class Writes:
    """Stands for the publisher and the events: counts the advice that would be written."""

    def __init__(self) -> None:
        self.published = 0

    async def publish(self, _target: object, _mode: str, items: Sized, _away: str) -> None:
        self.published += len(items)

    async def withdraw(self, *_: Any) -> None:
        """Nothing was published."""

    async def withdraw_ended(self, *_: Any) -> None:
        """Nothing was published."""

    def event(self, *_: Any) -> None:
        """Drop an event."""


def watched_job(number: int, pods: int, now_ms: int) -> WatchedJob:
    """An elastic job that has trained for half an hour."""
    name = f"train-{number % FAMILIES}-{number}"
    job = RecordedJob(
        cluster="c", uid=f"uid-{number}", namespace=f"team-{number % 20}", name=name,
        stem=f"train-{number % FAMILIES}", kind="ElasticJob", owner=f"user-{number % 50}",
        submitted_ms=now_ms - AGE_MS, started_ms=now_ms - AGE_MS,
        workers_min=1, workers_max=2 * pods, workers_asked=pods, spec_digest=str(number % FAMILIES),
        roles=(RoleSize(role="worker", since_ms=now_ms - AGE_MS, replicas=pods, gpus=1,
                        cpu_millis=8000, memory_bytes=16 << 30),),
    )  # fmt: skip
    observations = JobObservations(job=job, watched_from_start=True)
    for rank in range(pods):
        observations.add_run(
            ContainerRun(
                pod=f"{name}-{rank}", role="worker", rank=rank,
                node=f"node-{rank}", started_ms=now_ms - AGE_MS,
                limit_memory_bytes=16 << 30,
            )
        )  # fmt: skip
    meta = ObjectMeta(name=name, namespace=job.namespace, uid=job.uid)
    stored = Object(api_version="elastic.iml.github.io/v1alpha1", kind="ElasticJob", metadata=meta)
    kind = next(kind for kind in JOB_KINDS if kind.resource is ELASTIC_JOBS)
    return WatchedJob(kind=kind, meta=meta, observations=observations, stored=stored)


def facts(number: int, pods: int, now_ms: int, count: int, since_ms: int) -> str:
    """What the master of a job publishes: its last segments and its pods, which began then."""
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
            "since": since_ms, "until": now_ms, "samples": 60,
            "peakMemoryBytes": (8 << 30) + rank, "cpuMillisP50": 3000, "cpuMillisP95": 4000,
            "cpuMillisMax": 5000,
        }
        for rank in range(pods)
    ]  # fmt: skip
    return json.dumps({"v": 1, "segments": segments, "pods": used})


def ended_run(family: int, number: int, pods: int, now_ms: int) -> Run:
    """A run of a family that has ended some days ago, every other one with half the workers."""
    finished_ms = now_ms - (1 + number) * DAY_MS
    size = pods if number % 2 == 0 else max(pods // 2, 1)
    watched = watched_job(family, size, finished_ms)
    watched.observations.add_facts(
        digest_facts(facts(family, size, finished_ms, SEGMENTS, finished_ms - AGE_MS), finished_ms)
    )
    run = watched.observations.run()
    assert run is not None, "the job is known"
    job = msgspec.structs.replace(
        run.job, uid=f"ended-{family}-{number}", outcome=Outcome.SUCCEEDED, complete=True,
        finished_ms=finished_ms, observed_ms=finished_ms,
    )  # fmt: skip
    ended = [msgspec.structs.replace(pod, ended_ms=finished_ms) for pod in run.pods]
    return Run(job=job, segments=run.segments, pods=tuple(ended))


async def measure(
    jobs: int, pods: int, cycles: int, ended: int, folder: Path, closing: int = 1
) -> None:
    now_ms = round(time.time() * 1000)
    transport = SimpleNamespace(clock_skew_s=lambda: 0.0)
    client: Any = SimpleNamespace(transport=transport)
    writes: Any = Writes()
    store = open_store(f"sqlite:///{folder / 'brain.db'}", migrate=True)
    collector = Collector(client, DigestSettings(cluster="c", digest=store.digest))
    history = JobHistory(store, "c")
    async with store:
        await history.lead("benchmark")
        store.write.runs(
            ended_run(family, number, pods, now_ms)
            for family in range(min(FAMILIES, jobs))
            for number in range(ended)
        )
        policies: Any = SimpleNamespace(policy=Policy())
        evaluator = Evaluator(client, collector, history, policies, writes, writes)
        for number in range(jobs):
            watched = watched_job(number, pods, now_ms)
            collector.jobs[watched.meta.uid] = watched
            text = facts(number, pods, now_ms, SEGMENTS, now_ms - AGE_MS)
            collector.receive_facts(watched.meta.uid, text)
        for cycle in range(cycles):
            until_ms = now_ms + cycle * 5 * MINUTE_MS
            for number, uid in enumerate(collector.jobs):
                if (number + cycle) % closing == 0:
                    text = facts(number, pods, until_ms, 1, now_ms - AGE_MS)
                    collector.receive_facts(uid, text)
            before = writes.published
            began, used = time.perf_counter(), time.process_time()
            await evaluator.cycle()
            took, used = time.perf_counter() - began, time.process_time() - used
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(
                f"cycle {cycle + 1}: {took:.2f} s, {used:.2f} s of processor time, {rss} MB, "
                f"{writes.published - before} pieces of advice",
                flush=True,
            )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10)
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--ended", type=int, default=3)
    parser.add_argument("--closing", type=int, default=1)
    given = parser.parse_args() if __name__ == "__main__" else parser.parse_args([])
    gc.set_threshold(*GC_THRESHOLDS)  # as ``gangline brain`` does
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(
            measure(given.jobs, given.pods, given.cycles, given.ended, Path(folder), given.closing)
        )


if __name__ == "__main__":
    main()
