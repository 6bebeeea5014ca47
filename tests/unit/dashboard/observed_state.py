"""A recorded cluster for the tests of the dashboard, and a stub of its API server."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from gangline.api.core.core import Event
from gangline.api.core.node import Node
from gangline.api.meta.objects import Status
from gangline.api.volcano.scheduling import PodGroup, Queue
from gangline.dashboard.observed import ClusterSnapshot, SourceState, WatchedPod, watched_resource
from gangline.dashboard.rights import CLUSTER_KINDS, OWNED_KINDS, Scope, readable
from gangline.dashboard.views.base import Observation
from gangline.kube.config.config import ClusterConfig
from gangline.kube.errors import ApiError, NotFound, error_from_status
from gangline.sdk.kinds import JOB_KINDS, JobKind

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
PYTORCH = next(kind for kind in JOB_KINDS if kind.trainer == "pytorchjob")
ALL = Scope(
    dict.fromkeys(
        (*(readable(kind.resource) for kind in JOB_KINDS), *OWNED_KINDS, *CLUSTER_KINDS), None
    )
)


def stamp(ago_s: float) -> str:
    """The time so many seconds before ``NOW``, as the API writes it."""
    return (NOW - timedelta(seconds=ago_s)).isoformat()


def condition(type_: str, ago_s: float, message: str = "") -> dict[str, Any]:
    return {"type": type_, "status": "True", "message": message, "lastTransitionTime": stamp(ago_s)}


def job_manifest(
    name: str,
    *conditions: dict[str, Any],
    namespace: str = "default",
    owner: str = "",
    queue: str = "",
    workers: int = 1,
    gpus: int = 0,
    age_s: float = 600,
    started_s: float | None = None,
    generation: int = 1,
) -> dict[str, Any]:
    container = {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    status: dict[str, Any] = {"conditions": list(conditions)}
    if started_s is not None:
        status["startTime"] = stamp(started_s)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "7",
            "generation": generation,
            "creationTimestamp": stamp(age_s),
            "annotations": {"gangline.dev/owner": owner} if owner else {},
        },
        "spec": {
            "runPolicy": {"schedulingPolicy": {"queue": queue}} if queue else {},
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": workers,
                    "template": {"spec": {"containers": [container] if gpus else [{}]}},
                }
            },
        },
        "status": status,
    }


class Recorded:
    """An observed cluster that a test fills."""

    def __init__(self) -> None:
        self.cluster = ClusterSnapshot(sources={"pytorchjobs.kubeflow.org": SourceState(True)})
        self.manifests: dict[str, dict[str, Any]] = {}

    def observation(self, scope: Scope = ALL, viewer: str = "") -> Observation:
        return Observation(self.cluster, scope, NOW, viewer)

    def job(self, name: str, *conditions: dict[str, Any], **fields: Any) -> str:
        """Add a job, or replace it; return its UID."""
        manifest = job_manifest(name, *conditions, **fields)
        meta = manifest["metadata"]
        path = PYTORCH.resource.path(meta["namespace"], name)
        self.manifests[path] = manifest
        self._put(PYTORCH, manifest)
        return str(meta["uid"])

    def _put(self, kind: JobKind, manifest: dict[str, Any]) -> None:
        stored = msgspec.convert(manifest, watched_resource(kind).type)
        meta = stored.metadata
        before = self.cluster.by_key.get((meta.namespace, kind.trainer, meta.name))
        self.cluster.store_job(kind, before.stored if before else None, stored)

    def remove(self, name: str, namespace: str = "default") -> None:
        entry = self.cluster.by_key.get((namespace, "pytorchjob", name))
        assert entry is not None
        self.cluster.store_job(PYTORCH, entry.stored, None)

    def pod(
        self,
        job: str,
        index: int,
        phase: str = "Running",
        *,
        node: str = "",
        gpus: int = 0,
        message: str = "",
        exit_code: int | None = None,
        namespace: str = "default",
    ) -> None:
        name = f"{job}-worker-{index}"
        owner = {"kind": "PyTorchJob", "uid": f"uid-{namespace}-{job}", "controller": True}
        state: dict[str, Any] = {"running": {}} if phase == "Running" else {}
        if exit_code is not None:
            ended = {"exitCode": exit_code, "finishedAt": stamp(60), "message": message}
            state = {"terminated": {"reason": "Error" if exit_code else "Completed", **ended}}
        labels = {
            "training.kubeflow.org/job-name": job,
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": str(index),
        }
        pod = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"pod-{namespace}-{name}",
                "labels": labels,
                "ownerReferences": [{"apiVersion": "kubeflow.org/v1", "name": job, **owner}],
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
                ],
            },
            "status": {
                "phase": phase,
                "containerStatuses": [{"name": "pytorch", "state": state}],
            },
        }
        before = self.cluster.pods.get((namespace, name))
        self.cluster.store_pod(before, msgspec.convert(pod, WatchedPod))

    def group(self, job: str, *conditions: dict[str, Any], namespace: str = "default") -> None:
        owner = {"kind": "PyTorchJob", "name": job, "uid": f"uid-{namespace}-{job}"}
        group = {
            "metadata": {
                "name": job,
                "namespace": namespace,
                "ownerReferences": [{**owner, "controller": True}],
            },
            "status": {"conditions": list(conditions)},
        }
        self.cluster.store_group(None, msgspec.convert(group, PodGroup))

    def node(self, name: str, *, gpus: int = 0, ready: bool = True, **status: Any) -> None:
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        state = {"type": "Ready", "status": "True" if ready else "False"}
        node = {
            "metadata": {"name": name},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [state | ({} if ready else {"message": "No heartbeat."})],
                **status,
            },
        }
        self.cluster.store_node(self.cluster.nodes.get(name), msgspec.convert(node, Node))

    def queue(self, name: str, parent: str = "") -> None:
        queue = {"metadata": {"name": name}, "spec": {"parent": parent}}
        self.cluster.store_named(self.cluster.queues, None, msgspec.convert(queue, Queue))

    def event(self, subject: str, reason: str, message: str, ago_s: float, uid: str = "") -> None:
        kind, _, name = subject.partition("/")
        event = {
            "metadata": {"name": f"{name}.{ago_s}", "namespace": "default"},
            "involvedObject": {"kind": kind, "name": name, "namespace": "default", "uid": uid},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "firstTimestamp": stamp(ago_s),
            "lastTimestamp": stamp(ago_s),
        }
        self.cluster.store_event(None, msgspec.convert(event, Event))


def example() -> Recorded:
    """One job in each state that pages distinguish, on two nodes."""
    recorded = Recorded()
    recorded.node("node-1", gpus=4)
    recorded.node("node-2", gpus=4, ready=False)
    recorded.queue("default")
    recorded.queue("vision", parent="default")
    recorded.job(
        "running", condition("Running", 500), owner="ann", workers=2, gpus=1, started_s=500
    )
    for index in range(2):
        recorded.pod("running", index, node="node-1", gpus=1)
    recorded.group("running", condition("Scheduled", 510))
    recorded.job("waiting", condition("Created", 900), workers=8, gpus=4, age_s=900, started_s=899)
    unschedulable = condition("Unschedulable", 890, "32 nvidia.com/gpu are requested, 2 are free")
    starts = condition("StartExpected", 800, "in 2.0 h to 3.0 h")
    recorded.group("waiting", unschedulable, starts)
    for index in range(8):
        recorded.pod("waiting", index, "Pending", gpus=4)
    recorded.job("failed", condition("Failed", 60, "a replica has failed"), age_s=700)
    recorded.pod(
        "failed", 0, "Failed", node="node-1", exit_code=1, message="CUDA out of memory. Tried"
    )
    recorded.event("PyTorchJob/failed", "JobFailed", "it is over", 55, "uid-default-failed")
    recorded.job("secret", condition("Running", 100), namespace="other", age_s=100, started_s=100)
    recorded.pod("secret", 0, node="node-1", gpus=1, namespace="other")
    return recorded


class StubServer:
    """What the dashboard asks of an API server, as the client that it uses."""

    def __init__(self, recorded: Recorded) -> None:
        self.config = ClusterConfig("https://127.0.0.1:1")
        self.recorded = recorded
        self.may: Callable[[Mapping[str, str]], bool] = lambda asked: True
        self.asked: list[Mapping[str, str]] = []
        self.changes: list[tuple[str, str, Any]] = []
        self.problem: ApiError | None = None
        """Raised for every request while it is set."""

    async def is_allowed(self, **attributes: str) -> bool:
        self._check()
        self.asked.append(attributes)
        return self.may(attributes)

    async def user_name(self) -> str:
        self._check()
        return "ann"

    async def request_json(self, method: str, path: str, **request: Any) -> Any:
        self._check()
        manifest = self.recorded.manifests.get(path)
        if manifest is None:
            raise not_found(path)
        if method == "PATCH":
            self.changes.append((method, path, request["body"]))
        return json.loads(json.dumps(manifest))

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> Any:
        self._check()
        manifest = self.recorded.manifests.get(resource.path(namespace, name))
        if manifest is None:
            raise not_found(name)
        return msgspec.convert(manifest, resource.type)

    async def list(self, resource: Any, namespace: str | None = None, **_: Any) -> Any:
        self._check()
        from gangline.kube.client.client import ListResult

        return ListResult([], "1", [])

    async def logs(self, pod: str, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        raise not_found(pod)
        yield b""

    async def delete(self, resource: Any, name: str, namespace: str | None, **options: Any) -> None:
        self._check()
        self.changes.append(("DELETE", resource.path(namespace, name), options))

    def _check(self) -> None:
        if self.problem is not None:
            raise self.problem


def not_found(name: str) -> ApiError:
    return NotFound(Status(reason="NotFound", code=404, message=f"{name} not found"))


def unauthorized() -> ApiError:
    return error_from_status(Status(reason="Unauthorized", code=401, message="expired"))


def forbidden() -> ApiError:
    return error_from_status(Status(reason="Forbidden", code=403, message="not for you"))
