"""Two hundred PyTorchJobs of three pods on a real Kubernetes: how fast does the operator make them?

Ours: from the first submission until all 600 pods exist; the operator also makes 600 services and
200 PodGroups, writes statuses and events. Peer: a bare loop of eight connections that creates the
same 600 pods and 600 services and does nothing else. The rates are pods and services per second.
"""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.connection import Connection, Target
from benchmarks.servers import GANGLINE, install_definitions, real_kubernetes

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


async def count_creations(target: Target, namespace: str, wanted: int) -> None:
    """Return when ``wanted`` pods have been created in ``namespace``, as a watch tells it."""
    connection = await Connection.open(target)
    await connection.watch(f"/api/v1/namespaces/{namespace}/pods?watch=true")
    async for seen, _ in connection.count():
        if seen >= wanted:
            break
    connection.close()


def bare(thing: dict[str, Any], kind: str) -> bytes:
    """What a client would send to make ``thing`` anew in the namespace of the bare loop."""
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


async def ours(target: Target) -> float:
    """Seconds from the first submission until all pods exist."""
    watching = asyncio.create_task(count_creations(target, "ours", JOBS * PODS_PER_JOB))
    path = "/apis/kubeflow.org/v1/namespaces/ours/pytorchjobs"
    requests = [(path, json.dumps(job(f"bench-{n}")).encode()) for n in range(JOBS)]
    begun = time.monotonic()
    await create_all(target, requests)
    await watching
    return time.monotonic() - begun


async def settled_services(target: Target) -> list[dict[str, Any]]:
    """All services of our jobs, which are made along with the pods."""
    while len(services := await listed(target, "ours", "services")) < JOBS * PODS_PER_JOB:
        await asyncio.sleep(0.1)
    return services


async def peer(target: Target) -> float:
    """Seconds that the bare loop takes for the same pods and services."""
    pods, services = await listed(target, "ours", "pods"), await settled_services(target)
    requests = [("/api/v1/namespaces/bare/pods", bare(pod, "Pod")) for pod in pods]
    requests += [("/api/v1/namespaces/bare/services", bare(s, "Service")) for s in services]
    begun = time.monotonic()
    await create_all(target, requests)
    return time.monotonic() - begun


async def measure(kubeconfig: Path) -> tuple[float, float]:
    """Objects per second of the operator and of the bare loop."""
    target = Target.of(kubeconfig)
    namespaces = [
        ("/api/v1/namespaces", json.dumps({"metadata": {"name": n}}).encode()) for n in NAMESPACES
    ]
    await create_all(target, namespaces)
    for namespace in NAMESPACES:
        while not await listed(target, namespace, "serviceaccounts"):
            await asyncio.sleep(0.1)
    objects = 2 * JOBS * PODS_PER_JOB
    operator = objects / await ours(target)
    await settled_services(target)
    await asyncio.sleep(5)  # the operator's last statuses and events
    return operator, objects / await peer(target)


def main() -> None:
    """Start a Kubernetes and the operator, measure, print the ratio."""
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
            rate, bare_rate = asyncio.run(measure(kubeconfig))
        finally:
            operator.terminate()
            operator.wait(30)
    print(f"{JOBS} PyTorchJobs of {PODS_PER_JOB} pods on kube-apiserver, pods and services made")
    print(f"  bare loop of {CONNECTIONS} connections {bare_rate:7.0f} objects/s")
    print(f"  operator, from the first submission {rate:7.0f} objects/s")
    print(f"  ratio: {rate / bare_rate:.2f} (to reach: 0.70)")


if __name__ == "__main__":
    main()
