"""Memory of ``gangline up``: idle, and with 500 running pods of the fake runtime.

There is no peer: the figures are compared with fixed bounds. The resident set of the cluster's one
process is measured; the fake runtime starts no processes.
"""

import asyncio
import json
import re
import subprocess
import time
from pathlib import Path

from benchmarks.cluster.connection import Target
from benchmarks.cluster.servers import FAKE_CLUSTER, embedded
from benchmarks.operator.creation import create_all, job, listed

PODS = 500
IDLE_BOUND_MB = 150
FULL_BOUND_MB = 300


def resident_mb(process: subprocess.Popen[bytes]) -> float:
    """The resident set of ``process`` in megabytes (10^6 bytes)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None, status
    return int(found.group(1)) * 1024 / 1e6


async def fill(kubeconfig: Path) -> None:
    """Submit jobs until ``PODS`` pods run."""
    target = await Target.of(kubeconfig)
    path = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
    expected = -(-PODS // 3)
    await create_all(
        target, [(path, json.dumps(job(f"bench-{n}")).encode()) for n in range(expected)]
    )
    while True:
        pods = await listed(target, "default", "pods")
        if sum(pod["status"].get("phase") == "Running" for pod in pods) >= PODS:
            return
        await asyncio.sleep(1)


def main() -> None:
    options = ("--nodes", "5", "--cpus", "1000")
    with embedded(*options, program=FAKE_CLUSTER) as (kubeconfig, process):
        time.sleep(10)
        idle = resident_mb(process)
        asyncio.run(asyncio.wait_for(fill(kubeconfig), 300))
        time.sleep(5)
        full = resident_mb(process)
    print("resident memory of gangline up, one process with all components")
    print(f"  idle                     {idle:5.0f} MB (to reach: under {IDLE_BOUND_MB})")
    print(f"  {PODS} pods, fake runtime    {full:5.0f} MB (to reach: under {FULL_BOUND_MB})")


if __name__ == "__main__":
    main()
