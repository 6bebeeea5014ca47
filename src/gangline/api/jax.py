"""JAXJob: equal processes that use the first of them as coordinator."""

from typing import Annotated

from gangline.api.describe import about
from gangline.api.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta import Object, Wire

ROLES = ("Worker",)
CONTAINER = "jax"


class JAXJobSpec(Wire):
    """The desired state of a JAXJob."""

    run_policy: Annotated[RunPolicy, about("Run policy of the job.")] = RunPolicy()
    jax_replica_specs: Annotated[
        dict[str, ReplicaSpec], about("Pods by role: Worker is the only one.", required=True)
    ] = {}


class JAXJob(Object):
    """A distributed JAX training job."""

    spec: Annotated[JAXJobSpec, about("Desired state.", required=True)] = JAXJobSpec()
    status: Annotated[JobStatus, about("Observed state; written by the operator.")] = JobStatus()
