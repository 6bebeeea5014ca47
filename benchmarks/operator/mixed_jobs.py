"""Jobs of five kinds, four pods each, for benchmarks of the operator."""

import json
from typing import Any

PODS = 4

_KUBEFLOW = "kubeflow.org/v1"
_SHAPES: tuple[tuple[str, str, str, str, str, dict[str, int]], ...] = (
    (
        _KUBEFLOW,
        "pytorchjobs",
        "PyTorchJob",
        "pytorchReplicaSpecs",
        "pytorch",
        {"Master": 1, "Worker": 3},
    ),
    (
        _KUBEFLOW,
        "tfjobs",
        "TFJob",
        "tfReplicaSpecs",
        "tensorflow",
        {"Chief": 1, "PS": 1, "Worker": 2},
    ),
    (
        "mindspore.gitee.com/v1",
        "msjobs",
        "MSJob",
        "msReplicaSpecs",
        "mindspore",
        {"Scheduler": 1, "Worker": 3},
    ),
    (
        "batch.paddlepaddle.org/v1",
        "paddlejobs",
        "PaddleJob",
        "",
        "paddle",
        {"ps": 1, "worker": 3},
    ),
    (_KUBEFLOW, "jaxjobs", "JAXJob", "jaxReplicaSpecs", "jax", {"Worker": 4}),
)


def request(number: int, namespace: str) -> tuple[str, bytes]:
    """Path and body of the request that submits one job; the kinds alternate."""
    version, plural, kind, specs, container, counts = _SHAPES[number % len(_SHAPES)]
    roles = {role: _replicas(container, count) for role, count in counts.items()}
    keeps_pods = {"runPolicy": {"cleanPodPolicy": "None"}} if specs else {"cleanPodPolicy": "Never"}
    job: dict[str, Any] = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": f"bench-{number}"},
        "spec": {**keeps_pods, **({specs: roles} if specs else roles)},
    }
    return f"/apis/{version}/namespaces/{namespace}/{plural}", json.dumps(job).encode()


def lists(namespace: str) -> list[str]:
    """Paths that list the jobs of each kind."""
    return [f"/apis/{version}/namespaces/{namespace}/{plural}" for version, plural, *_ in _SHAPES]


def ended(job: dict[str, Any]) -> bool:
    """Whether a job has ended."""
    conditions = job.get("status", {}).get("conditions", [])
    return any(c["type"] in ("Succeeded", "Failed") and c["status"] == "True" for c in conditions)


def _replicas(container: str, count: int) -> dict[str, Any]:
    trains = {"name": container, "image": "busybox:1", "command": ["sleep", "60"]}
    spec = {"containers": [trains], "serviceAccountName": "default"}
    return {"replicas": count, "template": {"spec": spec}}
