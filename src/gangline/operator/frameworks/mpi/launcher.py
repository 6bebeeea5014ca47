"""What both versions of MPIJob share: the names of their objects, and how the Launcher decides."""

from collections.abc import Mapping

from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole
from gangline.operator.model.labels import replica_name
from gangline.operator.model.replicas import ReplicaGang
from gangline.operator.policies.replica_tracker import ReplicaTracker

CONTAINER = "mpi"
LAUNCHER, WORKER = "Launcher", "Worker"
NO_GPUS: Mapping[str, str] = {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
"""A launcher that is no host of processes sees no GPUs."""
EXECUTABLE, READABLE = 0o555, 0o444

CONFIG_VOLUME = "mpi-job-config"


class LauncherRules(ReplicaTracker):
    """The rules of MPIJobs of any version: the Launcher decides how the job runs and ends."""

    __slots__ = ()

    def pod_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        """Return the name of a pod; that of the only launcher has no index, as in upstream."""
        if role.name == LAUNCHER and index == 0:
            return launcher_name(job)
        return replica_name(job.name, role.name, index)

    def service_name(self, job: NormalizedJob, role: ReplicaRole, index: int) -> str:
        return self.pod_name(job, role, index)

    def is_master(self, job: NormalizedJob, role: ReplicaRole, index: int) -> bool:
        return role.name == LAUNCHER

    def has_succeeded(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[LAUNCHER].all_succeeded

    def is_running(self, job: NormalizedJob, gang: ReplicaGang) -> bool:
        return gang[LAUNCHER].active > 0


def config_name(job: NormalizedJob) -> str:
    return f"{job.name}-config"


def launcher_name(job: NormalizedJob) -> str:
    """Return the name of the launcher's pod and service, and of its account and role."""
    return f"{job.name}-launcher"


def worker_names(job: NormalizedJob) -> list[str]:
    workers = job.find_role(WORKER)
    count = workers.replicas if workers else 0
    return [replica_name(job.name, WORKER, index) for index in range(count)]


def config_map(job: NormalizedJob, files: Mapping[str, str]) -> Manifest:
    """Build the ConfigMap with the files of the launcher."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_name(job), "labels": {"app": job.name}},
        "data": dict(files),
    }


def with_files(pod: Manifest, job: NormalizedJob, path: str, modes: Mapping[str, int]) -> Manifest:
    """Mount files of the ConfigMap in the main container, each with its mode."""
    items = [{"key": name, "path": name, "mode": mode} for name, mode in modes.items()]
    volume = {"name": CONFIG_VOLUME, "configMap": {"name": config_name(job), "items": items}}
    mount = {"name": CONFIG_VOLUME, "mountPath": path}
    return pod_template.with_volume(pod, CONTAINER, volume, mount)
