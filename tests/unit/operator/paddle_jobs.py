"""Builders for PaddleJobs and their observed pods."""

from typing import Any

import msgspec

from gangline.operator.frameworks.paddle.framework import PaddleFramework
from gangline.operator.frameworks.paddle.status import BARRIER_CONTAINER
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.replicas import (
    ObservedContainerState,
    ObservedContainerStatus,
    ObservedPod,
    ObservedWaiting,
)
from unit.operator.builders import UID, a_pod, stored
from unit.operator.kubeflow_jobs import gang_of, pod_of, variables


def role(count: int, container: str = "paddle", **pod: Any) -> dict[str, Any]:
    """``role(2, restartPolicy="OnFailure")``."""
    containers = [{"name": container, "image": "train:1"}]
    return {"replicas": count, "template": {"spec": {"containers": containers, **pod}}}


def manifest(**spec: Any) -> dict[str, Any]:
    """``manifest(ps=1, worker=2, intranet="Service")``."""
    roles = ("ps", "worker", "heter")
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "train", "namespace": "team", "uid": UID, "generation": 1},
        "spec": {
            name: role(given) if name in roles and isinstance(given, int) else given
            for name, given in spec.items()
        },
    }


def a_job(*, framework: PaddleFramework | None = None, **spec: Any) -> NormalizedJob:
    """The job in the common form; it must be valid."""
    reading = (framework or PaddleFramework()).read(stored(manifest(**spec)))
    assert not reading.spec_errors
    return reading.job


def placed(name: str, ip: str = "", phase: str = "Running", **extra: Any) -> ObservedPod:
    """A pod with an address, ready if it runs."""
    pod = a_pod(name, phase, **extra)
    (status,) = pod.status.container_statuses
    ready = msgspec.structs.replace(status, ready=phase == "Running")
    reported = msgspec.structs.replace(pod.status, pod_ip=ip, container_statuses=(ready,))
    return msgspec.structs.replace(pod, status=reported)


def at_the_barrier(name: str, *, waiting: str = "") -> ObservedPod:
    """A pod whose init container waits for its peers."""
    pod = a_pod(name, "Pending")
    state = ObservedContainerState(waiting=ObservedWaiting(waiting) if waiting else None)
    reported = msgspec.structs.replace(
        pod.status,
        init_container_statuses=(ObservedContainerStatus(BARRIER_CONTAINER, state=state),),
    )
    return msgspec.structs.replace(pod, status=reported)


def config_map(job: NormalizedJob, *pods: ObservedPod) -> dict[str, str] | None:
    """The data of the job's ConfigMap; None while it is empty."""
    listed = job.rules.owned_objects(job, gang_of(job, *pods))
    assert all(
        item["kind"] == "ConfigMap" and item["metadata"]["name"] == "train" for item in listed
    )
    return (listed[0]["data"] or None) if listed else None


def environment(job: NormalizedJob, name: str) -> list[tuple[str, str]]:
    return variables(pod_of(job, name))
