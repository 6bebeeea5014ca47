"""From process start to the first answered request, compared with a real control plane.

Ours is ``gangline up`` with three nodes. The peer is etcd, kube-apiserver and the controller
manager, until ``/readyz`` succeeds. Medians of several starts on fresh state.
"""

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import results
from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import GANGLINE, kubernetes_version, real_kubernetes
from gangline.kube.errors import ConfigError

RUNS = 5
NAMESPACES = "/api/v1/namespaces"
OPTIONS = ("--name", "bench", "--nodes", "3", "--port", "0", "--durability", "process")
"""The peer's etcd runs without fsync, too."""


async def _until_answered(kubeconfig: Path) -> None:
    while True:
        try:
            connection = await Connection.open(await Target.of(kubeconfig))
            code, _ = await connection.request("GET", NAMESPACES)
            connection.close()
            if code == 200:
                return
        except (ConfigError, OSError, asyncio.IncompleteReadError):
            pass  # not written yet, or not listening yet
        await asyncio.sleep(0.005)


def start_ours() -> float:
    """Seconds until ``gangline up`` has answered an authenticated request."""
    with tempfile.TemporaryDirectory() as home:
        begun = time.monotonic()
        process = subprocess.Popen(
            [*GANGLINE, "up", *OPTIONS],
            env=os.environ | {"GANGLINE_HOME": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        asyncio.run(_until_answered(Path(home, "clusters", "bench", "kubeconfig")))
        taken = time.monotonic() - begun
        process.terminate()
        process.wait(60)
    return taken


def start_peer() -> float:
    """Seconds until the real control plane is ready."""
    begun = time.monotonic()
    with real_kubernetes():
        return time.monotonic() - begun


def main() -> None:
    peer = start_peer()
    ours = [start_ours() for _ in range(RUNS)]
    median = statistics.median(ours)
    print("cluster start, from the process to the first answered request")
    print(f"  etcd + kube-apiserver + controller manager {peer:.1f} s (once)")
    print(f"  gangline up, 3 nodes, median of {RUNS}: {median:.2f} s (worst {max(ours):.2f})")
    print(f"  ratio {median / peer:.2f}; to reach: under 2 s")
    figure = results.Figure(
        "from the start of a cluster to its first answer", "s", median, {"Kubernetes": peer}
    )
    conditions = f"three nodes; Gangline: median of {RUNS}, the peer once"
    results.write("cluster_start", conditions, {"start": figure}, kubernetes_version())


if __name__ == "__main__":
    main()
