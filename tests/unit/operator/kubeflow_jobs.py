"""Builders for jobs of the kinds with replica specs."""

import json
from collections.abc import Mapping
from typing import Any

from gangline.operator.engine import manifests
from gangline.operator.model.framework import Framework
from gangline.operator.model.job import NormalizedJob
from gangline.operator.model.plan import EngineSettings, TargetKind
from gangline.operator.model.replicas import ObservedPod, ObservedService, ReplicaGang, fill_slots
from unit.operator.builders import UID, look, manifests_of, stored

SETTINGS = EngineSettings(gang_scheduling=False)

SPECS = {
    "TFJob": ("tfReplicaSpecs", "tensorflow"),
    "JAXJob": ("jaxReplicaSpecs", "jax"),
    "XGBoostJob": ("xgbReplicaSpecs", "xgboost"),
    "PaddleJob": ("paddleReplicaSpecs", "paddle"),
    "MPIJob": ("mpiReplicaSpecs", "mpi"),
    "MSJob": ("msReplicaSpecs", "mindspore"),
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
}


def replica(container: str, count: int | None = 1, **extra: Any) -> dict[str, Any]:
    """A replica spec with one container."""
    pod = {"spec": {"containers": [{"name": container, "image": "train:1"}]}}
    return {**({} if count is None else {"replicas": count}), "template": pod, **extra}


def job_manifest(
    kind: str, roles: Mapping[str, Any], *, name: str = "train", **spec: Any
) -> dict[str, Any]:
    """``job_manifest("TFJob", {"PS": 1, "Worker": 2}, successPolicy="AllWorkers")``.

    A role with None instead of a number leaves ``replicas`` out; it may be a replica spec, too.
    """
    field, container = SPECS[kind]
    specs = {
        role: given if isinstance(given, dict) else replica(container, given)
        for role, given in roles.items()
    }
    return {
        "apiVersion": "mindspore.gitee.com/v1" if kind == "MSJob" else "kubeflow.org/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "team", "uid": UID},
        "spec": {field: specs, **spec},
    }


def read_job(framework: Framework, manifest: dict[str, Any]) -> NormalizedJob:
    """The job in the common form; it must be valid."""
    reading = framework.read(stored(manifest))
    assert not reading.spec_errors
    return reading.job


def gang_of(
    job: NormalizedJob, *pods: ObservedPod, services: dict[str, ObservedService] | None = None
) -> ReplicaGang:
    """The pods, assigned to slots."""
    slots = fill_slots([(role.name, role.replicas) for role in job.roles], pods, {})
    return ReplicaGang(slots.roles, slots.surplus, services or {})


def pod_of(job: NormalizedJob, name: str, gang: ReplicaGang | None = None) -> dict[str, Any]:
    """The created pod of a replica, such as ``worker-0``."""
    label, _, index = name.rpartition("-")
    (role,) = (declared for declared in job.roles if declared.label == label)
    return manifests.build_pod(job, role, int(index), SETTINGS, gang or gang_of(job), 0).manifest


def variables(pod: dict[str, Any], container: int = 0) -> list[tuple[str, str]]:
    """A container's environment in order; ``=path`` and ``@key`` stand for references."""
    listed = pod["spec"]["containers"][container].get("env", [])
    return [(variable["name"], _told(variable)) for variable in listed]


def _told(variable: dict[str, Any]) -> str:
    if "valueFrom" not in variable:
        return str(variable["value"])
    (reference,) = variable["valueFrom"].values()
    return f"={reference['fieldPath']}" if "fieldPath" in reference else f"@{reference['key']}"


def services(job: NormalizedJob) -> dict[str, dict[str, Any]]:
    """The services that a new job gets."""
    return manifests_of(look(job).decide(), TargetKind.SERVICE)


def tf_config(job: NormalizedJob, name: str) -> Any:
    """The ``TF_CONFIG`` of a TFJob's replica."""
    return json.loads(dict(variables(pod_of(job, name)))["TF_CONFIG"])
