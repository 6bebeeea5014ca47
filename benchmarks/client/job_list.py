"""``gangline list`` of 1,000 jobs, then with three pods each, compared with ``kubectl get``.

Nothing runs the jobs: without operator and scheduler, the pods are created with their owners. The
tools run as new processes, in turn; medians of wall time, means of processor time. kubectl lists
the jobs alone, and jobs with pods. Without kubectl the peer is a bare client that sends one list
request per kind.
"""

import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import (
    GANGLINE,
    embedded,
    install_definitions,
    real_kubernetes,
    real_kubernetes_scripts,
    run_tool,
)
from benchmarks.operator.creation import create_all, job

JOBS = 1000
PODS_PER_JOB = 3
RUNS = 7
BOUND_S = {0: 0.2, PODS_PER_JOB: 0.3}
"""Wall seconds to reach by the number of pods of each job."""
JOBS_PATH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
PODS_PATH = "/api/v1/namespaces/default/pods"
LISTS = ("/apis/kubeflow.org/v1/pytorchjobs", "/api/v1/pods")


def pod(owner: dict[str, Any], index: int) -> bytes:
    """A small pod of a job, with the operator's labels."""
    meta = owner["metadata"]
    reference = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    labels = {
        "training.kubeflow.org/job-name": meta["name"],
        "training.kubeflow.org/replica-type": "worker" if index else "master",
        "training.kubeflow.org/replica-index": str(max(0, index - 1)),
    }
    metadata = {
        "name": f"{meta['name']}-{index}",
        "labels": labels,
        "ownerReferences": [reference],
    }
    container = {"name": "pytorch", "image": "busybox:1", "command": ["sleep", "60"]}
    body = {"metadata": metadata, "spec": {"containers": [container]}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod"} | body).encode()


async def create_jobs(kubeconfig: Path) -> None:
    target = await Target.of(kubeconfig)
    names = [f"bench-{number}" for number in range(JOBS)]
    await create_all(target, [(JOBS_PATH, json.dumps(job(name)).encode()) for name in names])


async def create_pods(kubeconfig: Path) -> None:
    """Create the pods of the jobs."""
    target = await Target.of(kubeconfig)
    connection = await Connection.open(target)
    _, answer = await connection.request("GET", JOBS_PATH)
    connection.close()
    owners = json.loads(answer)["items"]
    await create_all(
        target, [(PODS_PATH, pod(owner, n)) for owner in owners for n in range(PODS_PER_JOB)]
    )


def listed(command: Sequence[str | Path], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and processor seconds of a tool that lists every job."""
    wall, spent, output = run_tool(command, environment)
    assert f"bench-{JOBS - 1}" in output
    return wall, spent


def bare_lists(kubeconfig: Path) -> tuple[float, float]:
    """Wall and processor seconds of the bare client, without process start."""

    async def ask() -> None:
        target = await Target.of(kubeconfig)
        for path in LISTS:
            connection = await Connection.open(target)
            code, _ = await connection.request("GET", path)
            assert code == 200, path
            connection.close()

    begun, before = time.monotonic(), time.process_time()
    asyncio.run(ask())
    return time.monotonic() - begun, time.process_time() - before


def peers(
    kubeconfig: Path, environment: dict[str, str]
) -> dict[str, Callable[[], tuple[float, float]]]:
    """Return functions that run a peer once, by its name."""
    if not shutil.which("kubectl"):
        return {"bare client, two requests": lambda: bare_lists(kubeconfig)}
    return {
        f"kubectl get {kinds} -A": partial(listed, ("kubectl", "get", kinds, "-A"), environment)
        for kinds in ("pytorchjobs", "pytorchjobs,pods")
    }


def compare(cluster: str, kubeconfig: Path, pods: int) -> None:
    """Measure in turn; print medians and the bound."""
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": home}
        tools = peers(kubeconfig, environment)
        tools["gangline list -A"] = partial(listed, [*GANGLINE, "list", "-A"], environment)
        for run in tools.values():
            run()  # kubectl caches the discovery of kinds, Python its compiled modules
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in tools}
        for _ in range(RUNS):
            for name, run in tools.items():
                runs[name].append(run())
    jobs = f"{JOBS} jobs with {JOBS * pods} pods"
    print(f"a list of {jobs} on {cluster}, medians of {RUNS} runs in turn")
    for name, measured in runs.items():
        wall = statistics.median(wall for wall, _ in measured)
        spent = statistics.mean(spent for _, spent in measured)
        print(f"  {name + ':':33} {wall:.2f} s, processor {spent:.2f} s")
    print(f"  to reach: under {BOUND_S[pods]:.1f} s")


def measure(cluster: str, kubeconfig: Path) -> None:
    """Measure with jobs alone, then with their pods."""
    asyncio.run(create_jobs(kubeconfig))
    compare(cluster, kubeconfig, 0)
    asyncio.run(create_pods(kubeconfig))
    compare(cluster, kubeconfig, PODS_PER_JOB)


def main() -> None:
    with embedded("--without", "operator", "--without", "scheduler") as (kubeconfig, _):
        measure("the embedded cluster", kubeconfig)
    if real_kubernetes_scripts() is not None:
        with real_kubernetes() as kubeconfig:
            install_definitions(kubeconfig)
            measure("Kubernetes 1.20", kubeconfig)


if __name__ == "__main__":
    main()
