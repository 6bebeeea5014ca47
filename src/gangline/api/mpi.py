"""MPIJob: a Launcher that runs ``mpirun``, and Workers that wait to be given processes."""

from collections.abc import Mapping
from typing import Annotated

from msgspec.structs import replace

from gangline.api.describe import about
from gangline.api.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta import Object, Wire

ROLES = ("Launcher", "Worker")


class MPIJobSpec(Wire):
    """What an MPIJob runs."""

    slots_per_worker: Annotated[
        int | None,
        about("Processes that each worker has room for; 1 when not given.", minimum=1),
    ] = None
    clean_pod_policy: Annotated[
        str | None,
        about(
            "Older place of runPolicy.cleanPodPolicy, which wins.",
            values=("All", "Running", "None"),
        ),
    ] = None
    main_container: Annotated[
        str,
        about("Container of a worker in which processes are started; the first when not given."),
    ] = ""
    run_policy: Annotated[RunPolicy, about("How it runs and ends.")] = RunPolicy()
    mpi_replica_specs: Annotated[
        dict[str, ReplicaSpec],
        about("Pods by role: Launcher (exactly one pod) and Worker.", required=True),
    ] = {}


class MPIJob(Object):
    """A distributed job of MPI processes."""

    spec: Annotated[MPIJobSpec, about("What it runs.", required=True)] = MPIJobSpec()
    status: Annotated[JobStatus, about("Where it is in its life; written by the operator.")] = (
        JobStatus()
    )


def with_defaults(specs: Mapping[str, ReplicaSpec]) -> dict[str, ReplicaSpec]:
    """Fill in how many workers there are where nothing is said: none, unlike in other kinds."""
    return {
        role: replace(spec, replicas=0)
        if spec.replicas is None and role.lower() == "worker"
        else spec
        for role, spec in specs.items()
    }
