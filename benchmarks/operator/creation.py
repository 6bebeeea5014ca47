"""Jobs, and a bare loop that creates objects over eight connections: of several benchmarks."""

import asyncio
import json
from typing import Any

from benchmarks.cluster.connection import Connection, Target

PODS_PER_JOB = 3
CONNECTIONS = 8
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
