"""MPIJobs of both versions, and the objects that they own."""

from typing import Any

from gangline.operator.frameworks.mpi.framework import MPIFramework
from gangline.operator.model.job import Manifest, NormalizedJob
from gangline.operator.model.replicas import ObservedPod
from unit.operator.kubeflow_jobs import gang_of, job_manifest, read_job

HOSTS = "/etc/mpi/hostfile"
NO_GPUS = [("NVIDIA_VISIBLE_DEVICES", ""), ("NVIDIA_DRIVER_CAPABILITIES", "")]


def written(workers: int | None = 2, version: str = "v1", **spec: Any) -> Manifest:
    manifest = job_manifest("MPIJob", {"Launcher": 1, "Worker": workers}, **spec)
    return {**manifest, "apiVersion": f"kubeflow.org/{version}"}


def pod_spec(manifest: Manifest, role: str = "Launcher") -> Manifest:
    spec: Manifest = manifest["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    return spec


def read(manifest: Manifest, kubectl: str = "") -> NormalizedJob:
    return read_job(MPIFramework(kubectl), manifest)


def objects(job: NormalizedJob, *pods: ObservedPod) -> dict[str, Manifest]:
    """The owned objects by kind."""
    owned = job.rules.owned_objects(job, gang_of(job, *pods))  # type: ignore[attr-defined]
    kinds = {item["kind"]: item for item in owned}
    assert len(kinds) == len(owned)
    return kinds


def files(job: NormalizedJob, *pods: ObservedPod) -> dict[str, str]:
    content: dict[str, str] = objects(job, *pods)["ConfigMap"]["data"]
    return content
