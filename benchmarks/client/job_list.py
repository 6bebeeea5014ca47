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
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import (
    GANGLINE,
    embedded,
    install_definitions,
    kubernetes_version,
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


def compare(cluster: str, kubeconfig: Path, pods: int) -> results.Figure:
    """Measure in turn; print medians and the bound; return the wall times of equal lists."""
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
    medians = {name: statistics.median(wall for wall, _ in runs[name]) for name in runs}
    ours = medians.pop("gangline list -A")
    # kubectl shows the state of pods only if it lists them too.
    peer, theirs = list(medians.items())[-1 if pods else 0]
    also = f" and the state of their {JOBS * pods:,} pods" if pods else " without pods"
    return results.Figure(
        f"list {JOBS:,} jobs{also}, {cluster}", "s", ours, {peer.split()[0]: theirs}
    )


def measure(cluster: str, kubeconfig: Path) -> tuple[results.Figure, results.Figure]:
    """Measure with jobs alone, then with their pods."""
    asyncio.run(create_jobs(kubeconfig))
    jobs = compare(cluster, kubeconfig, 0)
    asyncio.run(create_pods(kubeconfig))
    return jobs, compare(cluster, kubeconfig, PODS_PER_JOB)


def main() -> None:
    with embedded("--without", "operator", "--without", "scheduler") as (kubeconfig, _):
        jobs, pods = measure("the embedded cluster", kubeconfig)
    figures, versions = {"jobs": jobs, "pods": pods}, kubectl_version()
    if real_kubernetes_scripts() is not None:
        with real_kubernetes() as kubeconfig:
            install_definitions(kubeconfig)
            jobs, pods = measure("Kubernetes", kubeconfig)
        figures |= {"jobs_kubernetes": jobs, "pods_kubernetes": pods}
        versions |= kubernetes_version()
    conditions = f"new processes, medians of {RUNS} runs in turn"
    results.write("job_list", conditions, figures, versions)


def kubectl_version() -> dict[str, str]:
    if not shutil.which("kubectl"):
        return {}
    shown = subprocess.run(
        ["kubectl", "version", "--client", "--output", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {"kubectl": json.loads(shown.stdout)["clientVersion"]["gitVersion"].removeprefix("v")}


if __name__ == "__main__":
    main()
