"""Does the cluster grow with age? 10,000 small jobs of three pods, each removed by its TTL.

``python -m benchmarks.cluster.soak [JOBS]``

``LIVE`` jobs exist at any time; a new one is submitted when the TTL has removed another. After each
``BLOCK`` of jobs the memory of the cluster's processes, their processor time per job, the size of
the state file with its log, and the number of files in the cluster's folder are printed. There is
no peer: after the first ``WARM_UP`` jobs all figures should stay where they are. The last lines
compare the last block with the first one after them.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.fake_runtime import RUN_SECONDS
from benchmarks.cluster.servers import FAKE_CLUSTER, embedded
from benchmarks.operator.creation import job

JOBS = 10_000
BLOCK = 500
WARM_UP = 1000
"""Jobs until the limits of history, events and archived logs are reached."""
LIVE = 40
"""Jobs at a time: few, so that the cluster is not measured while it is overloaded."""
PATH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
OPTIONS = ("--nodes", "4", "--cpus", "1000")


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster after a number of jobs."""

    jobs: int
    memory_mb: float
    """Proportional set size of all processes of the cluster."""
    processor_s: float
    database_mb: float
    files: int
    seconds: float


def short_job(name: str) -> dict[str, Any]:
    """A PyTorchJob of three pods that run for a second, removed right after its end."""
    made = job(name)
    for role in made["spec"]["pytorchReplicaSpecs"].values():
        template = {**role["template"], "metadata": {"annotations": {RUN_SECONDS: "1"}}}
        role["template"] = template
    made["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": 1, "cleanPodPolicy": "All"}
    return made


def sample(process: subprocess.Popen[bytes], folder: Path, jobs: int) -> Sample:
    """Measure the cluster now."""
    main = psutil.Process(process.pid)
    members = [main, *main.children(recursive=True)]
    times = [member.cpu_times() for member in members]
    return Sample(
        jobs,
        sum(member.memory_full_info().pss for member in members) / 1e6,
        sum(t.user + t.system + t.children_user + t.children_system for t in times),
        sum(file.stat().st_size for file in folder.glob("state.db*")) / 1e6,
        sum(len(files) for _, _, files in os.walk(folder)),
        time.monotonic(),
    )


async def count_jobs(connection: Connection) -> int:
    """Number of jobs that exist."""
    code, answer = await connection.request("GET", f"{PATH}?limit=1")
    if code != 200:
        raise ConnectionError(f"the list of jobs was answered {code}: {answer[:300]!r}")
    page = json.loads(answer)
    return len(page["items"]) + page["metadata"].get("remainingItemCount", 0)


async def run_jobs(connection: Connection, first: int, count: int) -> None:
    """Submit ``count`` jobs, never more than ``LIVE`` at a time."""
    next_job = first
    while next_job < first + count:
        free = LIVE - await count_jobs(connection)
        for _ in range(min(free, first + count - next_job)):
            body = json.dumps(short_job(f"soak-{next_job}")).encode()
            code, answer = await connection.request("POST", PATH, body)
            if code != 201:
                raise ConnectionError(f"a job was answered {code}: {answer[:300]!r}")
            next_job += 1
        await asyncio.sleep(0.2)


def processor_ms(before: Sample, after: Sample) -> float:
    """Processor time per job of a block."""
    return (after.processor_s - before.processor_s) / max(1, after.jobs - before.jobs) * 1000


def compare(blocks: list[tuple[Sample, Sample]]) -> None:
    """Print how the last block differs from the first."""
    if len(blocks) < 2:
        return
    first, last = blocks[0], blocks[-1]
    print(f"after {first[1].jobs} and after {last[1].jobs} jobs:")
    print(f"  memory         {last[1].memory_mb / first[1].memory_mb:5.2f} times as much")
    print(f"  processor time {processor_ms(*last) / processor_ms(*first):5.2f} times as much")
    print(f"  state file     {max(after.database_mb for _, after in blocks):5.0f} MB at most")


def report(before: Sample, after: Sample) -> None:
    """Print the figures of one block of jobs."""
    print(
        f"  {after.jobs:6d} {after.memory_mb:10.1f} "
        f"{processor_ms(before, after):13.1f} "
        f"{after.database_mb:12.1f} {after.files:7d} {after.seconds - before.seconds:9.0f}",
        flush=True,
    )


async def soak(kubeconfig: Path, process: subprocess.Popen[bytes], jobs: int) -> None:
    """Run all jobs and print a row after each block."""
    print("    jobs  memory MB  processor ms  database MB   files   seconds")
    folder = kubeconfig.parent
    before = sample(process, folder, 0)
    blocks: list[tuple[Sample, Sample]] = []
    connection = await Connection.open(await Target.of(kubeconfig))
    while before.jobs < jobs:
        count = min(BLOCK, jobs - before.jobs)
        await run_jobs(connection, before.jobs, count)
        after = sample(process, folder, before.jobs + count)
        report(before, after)
        blocks.append((before, after))
        before = after
    connection.close()
    compare([block for block in blocks if block[1].jobs >= WARM_UP])


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1].isdecimal() else JOBS
    print(f"soak of {jobs} jobs with 3 pods each, {LIVE} at a time, one cluster")
    with embedded(*OPTIONS, program=FAKE_CLUSTER) as (kubeconfig, process):
        time.sleep(5)
        asyncio.run(soak(kubeconfig, process, jobs))


if __name__ == "__main__":
    main()
