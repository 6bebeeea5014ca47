"""MPIJob: a Launcher that runs ``mpirun``, and Workers in which mpirun starts the processes.

One struct has the fields of both versions, because they share the schema of one definition:
``kubeflow.org/v1`` of the training operator, and ``kubeflow.org/v2beta1`` of the MPI operator.
``versions`` tells which of them a job was written in.
"""

from collections.abc import Mapping
from typing import Annotated

from msgspec.structs import replace

from gangline.api.job_names import MANAGED_BY_MULTI_KUEUE
from gangline.api.jobs.kubeflow import (
    MANAGED_BY_US,
    JobStatus,
    ReplicaSpec,
    RunPolicy,
)
from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Object, Wire

ROLES = ("Launcher", "Worker")
CONTAINER = "mpi"
FILES_PATH = "/etc/mpi"
"""Where the operator mounts the host file and its scripts."""
ROOT_SSH_PATH = "/root/.ssh"
"""OpenSSH requires that only its owner can read these files."""
V2BETA1 = "kubeflow.org/v2beta1"
OPEN_MPI, INTEL, MPICH = "OpenMPI", "Intel", "MPICH"
AT_STARTUP, WAIT_FOR_WORKERS = "AtStartup", "WaitForWorkersReady"
V2BETA1_DEFAULTS: Mapping[str, object] = {
    "slotsPerWorker": 1,
    "runLauncherAsWorker": False,
    "sshAuthMountPath": ROOT_SSH_PATH,
    "launcherCreationPolicy": AT_STARTUP,
    "mpiImplementation": OPEN_MPI,
}
"""Defaults that the API server writes into the specification of a job of ``v2beta1``."""
MANAGED_BY_MPI_OPERATOR = "kubeflow.org/mpi-operator"
"""The name of the MPI operator itself, which this operator replaces."""


class MPIRunPolicy(RunPolicy):
    """How an MPIJob runs and what happens when it ends."""

    managed_by: Annotated[
        str | None,
        doc(
            "Controller that runs the job; cannot be changed.",
            values=(MANAGED_BY_US, MANAGED_BY_MULTI_KUEUE, MANAGED_BY_MPI_OPERATOR),
        ),
    ] = None


class MPIJobSpec(Wire):
    """The desired state of an MPIJob."""

    slots_per_worker: Annotated[
        int | None,
        doc("MPI slots of each worker; 1 when not given.", minimum=1),
    ] = None
    clean_pod_policy: Annotated[
        str | None,
        doc(
            "Older field for runPolicy.cleanPodPolicy, which takes precedence.",
            values=("All", "Running", "None"),
        ),
    ] = None
    main_container: Annotated[
        str,
        doc("Container of a worker in which processes are started; the first when not given."),
    ] = ""
    run_policy: Annotated[MPIRunPolicy, doc("Run policy of the job.")] = MPIRunPolicy()
    mpi_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        doc("Pods by role: Launcher (exactly one pod) and Worker.", required=True),
    ] = {}
    run_launcher_as_worker: Annotated[
        bool | None, doc("v2beta1: mpirun starts processes in the Launcher as well.")
    ] = None
    ssh_auth_mount_path: Annotated[
        str | None, doc("v2beta1: directory of the SSH keys; /root/.ssh when not given.")
    ] = None
    launcher_creation_policy: Annotated[
        str | None,
        doc(
            "v2beta1: when the Launcher is created: with the workers (AtStartup, when not given) "
            "or when all of them are ready.",
            values=(AT_STARTUP, WAIT_FOR_WORKERS),
        ),
    ] = None
    mpi_implementation: Annotated[
        str | None,
        doc(
            "v2beta1: format of the host file and of variables; OpenMPI when not given.",
            values=(OPEN_MPI, INTEL, MPICH),
        ),
    ] = None


class MPIJob(Object):
    """A distributed job of MPI processes."""

    spec: Annotated[MPIJobSpec, doc("Desired state.", required=True)] = MPIJobSpec()
    status: Annotated[JobStatus, doc("Observed state; written by the operator.")] = JobStatus()


def default_replica_specs(job: MPIJob) -> dict[str, ReplicaSpec]:
    """Return the replica specs with the defaults that other kinds do not have: 0 workers, and the
    restart policies of ``v2beta1``.
    """
    specs = dict(job.spec.mpi_replica_specs)
    for key, spec in specs.items():
        is_worker = key.lower() == "worker"
        policy = spec.restart_policy
        if job.api_version == V2BETA1:
            policy = policy or ("Never" if is_worker else "OnFailure")
        replicas = 0 if is_worker and spec.replicas is None else spec.replicas
        specs[key] = replace(spec, replicas=replicas, restart_policy=policy)
    return specs
