"""MPIJob of ``kubeflow.org/v2beta1``: the launcher starts processes in the workers by SSH.

Workers run ``sshd``. All pods of a job have one key pair, which is created with the job: the
private key opens a connection, the public key accepts it. The host file lists the names of the
workers' services.

A worker without ``command`` and ``args`` runs ``/usr/sbin/sshd -De``, as in upstream. As for
upstream, images must accept unknown host keys (``StrictHostKeyChecking no`` in ``ssh_config``).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from gangline.api.jobs import mpi as api
from gangline.api.jobs.mpi import CONTAINER, FILES_PATH, ROOT_SSH_PATH, MPIJobSpec
from gangline.operator.frameworks import kubeflow
from gangline.operator.frameworks.mpi.objects import (
    DISCOVERY_SCRIPT,
    EXECUTABLE,
    HOST_FILE,
    LAUNCHER,
    NO_GPUS,
    READABLE,
    WORKER,
    LauncherRules,
    config_map,
    launcher_name,
    with_files,
    worker_names,
)
from gangline.operator.model import pod_template
from gangline.operator.model.job import Manifest, NormalizedJob, ReplicaRole, RestartPolicy
from gangline.operator.model.labels import JOB_ROLE
from gangline.operator.model.plan import SSH_PRIVATE_KEY, SSH_PUBLIC_KEY
from gangline.operator.model.replicas import ReplicaGang

_ROLE_VARIABLE = "K_MPI_JOB_ROLE"
_VOLUME = "ssh-auth"
_PRIVATE, _PUBLIC = "ssh-privatekey", "ssh-publickey"
_KEY_FILES = (
    {"key": _PRIVATE, "path": "id_rsa"},
    {"key": _PUBLIC, "path": "id_rsa.pub"},
    {"key": _PUBLIC, "path": "authorized_keys"},
)
_SSHD = ("/usr/sbin/sshd", "-De")
_HOST_FILE = f"{FILES_PATH}/{HOST_FILE}"
_SSH_OPTIONS = "-o ConnectionAttempts=10"
_DIGEST = 10


@dataclass(frozen=True, slots=True)
class SSHRules(LauncherRules):
    """The rules of MPIJobs of ``v2beta1``."""

    spec: MPIJobSpec

    def environment(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> list[Manifest]:
        """Report its hosts to mpirun."""
        variables = [(_ROLE_VARIABLE, role.label)]
        if role.name == LAUNCHER:
            variables += self._launcher_variables()
        hides_gpus = role.name == LAUNCHER and not self.spec.run_launcher_as_worker
        return kubeflow.env_vars([*variables, *(NO_GPUS.items() if hides_gpus else ())])

    def can_start(
        self, job: NormalizedJob, role: ReplicaRole, index: int, gang: ReplicaGang
    ) -> bool:
        if role.name != LAUNCHER or self.spec.launcher_creation_policy != api.WAIT_FOR_WORKERS:
            return True
        return all(pod is not None and pod.is_ready for pod in gang[WORKER].pods)

    def tolerates_failures(self, job: NormalizedJob, role: ReplicaRole) -> bool:
        """A worker that is never restarted does not end the job: mpirun notices its failure."""
        return role.name == WORKER and role.restart is RestartPolicy.NEVER

    def failure_reason(self, job: NormalizedJob, gang: ReplicaGang) -> str:
        """An evicted worker ends the job, as in upstream.

        So does a failed worker for which a launcher waits that has no pod yet: that worker is never
        ready again, and no mpirun exists that would notice it.
        """
        role, workers = job.find_role(WORKER), gang[WORKER]
        if role is None or not self.tolerates_failures(job, role):
            return ""
        failed = sum(pod.failed for pod in workers.present)
        waits = self.spec.launcher_creation_policy == api.WAIT_FOR_WORKERS
        if failed and waits and job.find_role(LAUNCHER) and gang[LAUNCHER].missing:
            return f"{failed}/{workers.desired} workers failed before the launcher was created."
        evicted = sum(pod.failed and pod.status.reason == "Evicted" for pod in workers.present)
        return f"{evicted}/{workers.desired} workers are evicted." if evicted else ""

    def shape_pod(
        self, job: NormalizedJob, role: ReplicaRole, index: int, pod: Manifest, gang: ReplicaGang
    ) -> Manifest:
        """Mount the keys and the launcher's files; set the worker's command."""
        pod = pod_template.with_metadata(pod, {JOB_ROLE: role.label}, {})
        if pod_template.pod_spec(pod).get("hostNetwork"):
            pod = pod_template.with_cluster_dns(pod)
        container = pod_template.main_container(pod, CONTAINER)
        if role.name == WORKER and not container.get("command") and not container.get("args"):
            pod = pod_template.with_container(pod, CONTAINER, command=list(_SSHD))
        if role.name == LAUNCHER:
            modes = {HOST_FILE: READABLE, DISCOVERY_SCRIPT: EXECUTABLE}
            pod = with_files(pod, job, FILES_PATH, modes)
        path = self.spec.ssh_auth_mount_path or ROOT_SSH_PATH
        return with_keys(job, pod, CONTAINER, path, {})

    def owned_objects(self, job: NormalizedJob, gang: ReplicaGang) -> list[Manifest]:
        own = [launcher_name(job)] if self.spec.run_launcher_as_worker else []
        running = [pod.name for pod in gang[WORKER].present if pod.is_active]
        lines = [f"echo {_address(job, name)}\n" for name in (*own, *running)]
        colon = self.spec.mpi_implementation in (api.INTEL, api.MPICH)
        slots = f"{':' if colon else ' slots='}{self._slots}"
        hosts = [f"{_address(job, name)}{slots}\n" for name in (*own, *worker_names(job))]
        files = {
            HOST_FILE: "".join(hosts),
            DISCOVERY_SCRIPT: "#!/bin/sh\n" + "".join(lines),
        }
        return [key_secret(job), config_map(job, files)]

    @property
    def _slots(self) -> int:
        slots = self.spec.slots_per_worker
        return 1 if slots is None else slots

    def _launcher_variables(self) -> list[tuple[str, str]]:
        slots = str(self._slots)
        match self.spec.mpi_implementation:
            case api.INTEL:
                return [
                    ("I_MPI_HYDRA_HOST_FILE", _HOST_FILE),
                    ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", _SSH_OPTIONS),
                    ("I_MPI_PERHOST", slots),
                ]
            case api.MPICH:
                return [
                    ("HYDRA_HOST_FILE", _HOST_FILE),
                    ("HYDRA_LAUNCH_EXTRA_ARGS", _SSH_OPTIONS),
                ]
        return [
            ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
            ("OMPI_MCA_orte_default_hostfile", _HOST_FILE),
            ("OMPI_MCA_plm_rsh_args", _SSH_OPTIONS),
            ("OMPI_MCA_orte_set_default_slots", slots),
            # Upstream's list ends here. Open MPI 5 reads other names.
            ("PRTE_MCA_prte_default_hostfile", _HOST_FILE),
            ("PRTE_MCA_plm_ssh_args", _SSH_OPTIONS),
        ]


def key_secret(job: NormalizedJob) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(job), "labels": {"app": job.name}},
        "type": "kubernetes.io/ssh-auth",
        "stringData": {_PRIVATE: SSH_PRIVATE_KEY, _PUBLIC: SSH_PUBLIC_KEY},
    }


def with_keys(
    job: NormalizedJob, pod: Manifest, container: str, path: str, modes: Mapping[str, int]
) -> Manifest:
    """Mount the key pair in a container; a file that ``modes`` lacks has the default mode."""
    items = [
        {**item, "mode": modes[item["path"]]} if item["path"] in modes else dict(item)
        for item in _KEY_FILES
    ]
    source: Manifest = {"secretName": secret_name(job), "items": items}
    if path == ROOT_SSH_PATH:
        source["defaultMode"] = 0o600
    mount = {"name": _VOLUME, "mountPath": path}
    return pod_template.with_volume(pod, container, {"name": _VOLUME, "secret": source}, mount)


def secret_name(job: NormalizedJob) -> str:
    """Return the name of the job's key pair.

    It contains the job's uid, so it cannot be another job's, and the operator needs no right to
    read Secrets.
    """
    digest = hashlib.sha256(job.meta.uid.encode()).hexdigest()[:_DIGEST]
    return f"{job.name}-ssh-{digest}"


def _address(job: NormalizedJob, pod: str) -> str:
    return f"{pod}.{job.meta.namespace}.svc"
