"""``gangline list`` with 1,000 jobs of four pods each, compared with ``kubectl get`` of the same.

Nothing runs the jobs: without operator and scheduler, the pods are created with their owners. Both
tools run as new processes, in turn; medians of wall time, means of processor time. Without kubectl
the peer is a bare client that sends one list request per kind.
"""

import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
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
PODS_PER_JOB = 4
RUNS = 7
BOUND_S = 1.0
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


async def fill(kubeconfig: Path) -> None:
    """Create the jobs and their pods."""
    target = await Target.of(kubeconfig)
    names = [f"bench-{number}" for number in range(JOBS)]
    await create_all(target, [(JOBS_PATH, json.dumps(job(name)).encode()) for name in names])
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


def peer(kubeconfig: Path, environment: dict[str, str]) -> tuple[str, Callable[[], Any]]:
    """Return the name of the peer and a function that runs it once."""
    if shutil.which("kubectl"):
        command = ("kubectl", "get", "pytorchjobs,pods", "-A")
        return "kubectl get pytorchjobs,pods -A", lambda: listed(command, environment)
    return "bare client, two requests", lambda: bare_lists(kubeconfig)


def measure(cluster: str, kubeconfig: Path) -> None:
    """Measure in turn; print medians and the ratio."""
    asyncio.run(fill(kubeconfig))
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": home}
        name, other = peer(kubeconfig, environment)
        other()  # kubectl caches the discovery of kinds
        ours, theirs = [], []
        for _ in range(RUNS):
            ours.append(listed([*GANGLINE, "list", "-A"], environment))
            theirs.append(other())
    jobs = f"{JOBS} jobs with {JOBS * PODS_PER_JOB} pods"
    print(f"a list of {jobs} on {cluster}, medians of {RUNS} runs in turn")
    for tool, runs in ((f"{name}:", theirs), ("gangline list -A:", ours)):
        wall = statistics.median(wall for wall, _ in runs)
        spent = statistics.mean(spent for _, spent in runs)
        print(f"  {tool:33} {wall:.2f} s, processor {spent:.2f} s")
    median = statistics.median(wall for wall, _ in ours)
    ratio = median / statistics.median(wall for wall, _ in theirs)
    print(f"  ratio {ratio:.2f}; to reach: under {BOUND_S:.0f} s, reached {median:.2f} s")


def main() -> None:
    with embedded("--without", "operator", "--without", "scheduler") as (kubeconfig, _):
        measure("the embedded cluster", kubeconfig)
    if real_kubernetes_scripts() is not None:
        with real_kubernetes() as kubeconfig:
            install_definitions(kubeconfig)
            measure("Kubernetes 1.20", kubeconfig)


if __name__ == "__main__":
    main()
