"""200 PyTorchJobs of three pods on a real Kubernetes: how fast does the operator create pods?

Ours: from the first submission until all 600 pods exist, and until all 600 services exist too,
which have lower priority. The operator also creates 200 PodGroups and writes statuses and events.
Peer: a bare loop of eight connections that creates only the same 600 pods and 600 services.
"""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster.connection import Connection, Target
from benchmarks.cluster.servers import GANGLINE, install_definitions, real_kubernetes

JOBS = 200
PODS_PER_JOB = 3
CONNECTIONS = 8
NAMESPACES = ("ours", "bare")
OF_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences")


def job(name: str) -> dict[str, Any]:
    """A PyTorchJob of one master and two workers."""
    container = {"name": "pytorch", "image": "busybox:1", "command": ["sleep", "60"]}
    spec = {"containers": [container], "serviceAccountName": "default"}
    role = {"restartPolicy": "OnFailure", "template": {"spec": spec}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": role | {"replicas": 1},
                "Worker": role | {"replicas": PODS_PER_JOB - 1},
            }
        },
    }


async def create_all(target: Target, requests: list[tuple[str, bytes]]) -> None:
    """Send all POST requests over ``CONNECTIONS`` connections."""
    pending = iter(requests)

    async def worker() -> None:
        connection = await Connection.open(target)
        for path, body in pending:
            code, answer = await connection.request("POST", path, body)
            if code not in (200, 201):
                raise ConnectionError(f"POST {path} answered {code}: {answer[:300]!r}")
        connection.close()

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))


async def listed(target: Target, namespace: str, plural: str) -> list[dict[str, Any]]:
    """All objects of a core kind in ``namespace``."""
    connection = await Connection.open(target)
    _, answer = await connection.request("GET", f"/api/v1/namespaces/{namespace}/{plural}")
    connection.close()
    return json.loads(answer)["items"]


async def all_created(target: Target, plural: str, expected: int) -> float:
    """The time when ``expected`` objects have been created for our jobs, as seen by a watch."""
    connection = await Connection.open(target)
    await connection.watch(f"/api/v1/namespaces/ours/{plural}?watch=true")
    async for seen in connection.added():
        if seen >= expected:
            break
    connection.close()
    return time.monotonic()


def bare(thing: dict[str, Any], kind: str) -> bytes:
    """The request body that recreates ``thing`` in the namespace of the bare loop."""
    metadata = {k: v for k, v in thing["metadata"].items() if k not in OF_THE_SERVER}
    spec = {k: v for k, v in thing["spec"].items() if k not in ("nodeName", "clusterIPs")}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": metadata | {"namespace": "bare"},
            "spec": spec,
        }
    ).encode()


async def ours(target: Target) -> tuple[float, float]:
    """Seconds from the first submission until all pods, and until all services exist."""
    expected = JOBS * PODS_PER_JOB
    pods = asyncio.create_task(all_created(target, "pods", expected))
    services = asyncio.create_task(all_created(target, "services", expected))
    path = "/apis/kubeflow.org/v1/namespaces/ours/pytorchjobs"
    requests = [(path, json.dumps(job(f"bench-{n}")).encode()) for n in range(JOBS)]
    begun = time.monotonic()
    await create_all(target, requests)
    return await pods - begun, await services - begun


async def peer(target: Target) -> float:
    """Seconds of the bare loop for the same pods and services."""
    pods = await listed(target, "ours", "pods")
    services = await listed(target, "ours", "services")
    requests = [("/api/v1/namespaces/bare/pods", bare(pod, "Pod")) for pod in pods]
    requests += [("/api/v1/namespaces/bare/services", bare(s, "Service")) for s in services]
    begun = time.monotonic()
    await create_all(target, requests)
    return time.monotonic() - begun


async def measure(kubeconfig: Path) -> tuple[float, float, float]:
    """Seconds of the operator until all pods, and all services exist, and of the bare loop."""
    target = await Target.of(kubeconfig)
    namespaces = [
        ("/api/v1/namespaces", json.dumps({"metadata": {"name": n}}).encode()) for n in NAMESPACES
    ]
    await create_all(target, namespaces)
    for namespace in NAMESPACES:
        while not await listed(target, namespace, "serviceaccounts"):
            await asyncio.sleep(0.1)
    pods, services = await ours(target)
    await asyncio.sleep(5)  # the operator's last statuses and events
    return pods, services, await peer(target)


def main() -> None:
    with real_kubernetes() as kubeconfig:
        environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        install_definitions(kubeconfig)
        operator = subprocess.Popen(
            [*GANGLINE, "operator"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(3)
            pods, services, bare_loop = asyncio.run(measure(kubeconfig))
        finally:
            operator.terminate()
            operator.wait(30)
    print(f"{JOBS} PyTorchJobs of {PODS_PER_JOB} pods on kube-apiserver, pods and services made")
    print(
        f"  bare loop of {CONNECTIONS} connections: all pods and services after {bare_loop:.2f} s"
    )
    print(f"  operator: all pods after {pods:.2f} s, all services too after {services:.2f} s")
    print(
        f"  ratio of rates, until all pods exist: {bare_loop / pods:.2f} (to reach: 0.70); "
        f"until all services do too: {bare_loop / services:.2f}"
    )


if __name__ == "__main__":
    main()
