"""MPIJob: a Launcher that runs ``mpirun``, and Workers in which mpirun starts the processes."""

from collections.abc import Mapping
from typing import Annotated

from msgspec.structs import replace

from gangline.api.jobs.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta.field_doc import field_doc
from gangline.api.meta.objects import Object, Wire

ROLES = ("Launcher", "Worker")


class MPIJobSpec(Wire):
    """The desired state of an MPIJob."""

    slots_per_worker: Annotated[
        int | None,
        field_doc("MPI slots of each worker; 1 when not given.", minimum=1),
    ] = None
    clean_pod_policy: Annotated[
        str | None,
        field_doc(
            "Older field for runPolicy.cleanPodPolicy, which takes precedence.",
            values=("All", "Running", "None"),
        ),
    ] = None
    main_container: Annotated[
        str,
        field_doc(
            "Container of a worker in which processes are started; the first when not given."
        ),
    ] = ""
    run_policy: Annotated[RunPolicy, field_doc("Run policy of the job.")] = RunPolicy()
    mpi_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        field_doc("Pods by role: Launcher (exactly one pod) and Worker.", required=True),
    ] = {}


class MPIJob(Object):
    """A distributed job of MPI processes."""

    spec: Annotated[MPIJobSpec, field_doc("Desired state.", required=True)] = MPIJobSpec()
    status: Annotated[JobStatus, field_doc("Observed state; written by the operator.")] = (
        JobStatus()
    )


def with_default_replicas(specs: Mapping[str, ReplicaSpec]) -> dict[str, ReplicaSpec]:
    """Set the number of workers to 0 if it is not given: other kinds default to 1."""
    return {
        role: replace(spec, replicas=0)
        if spec.replicas is None and role.lower() == "worker"
        else spec
        for role, spec in specs.items()
    }
