"""JAXJob: equal processes that find each other through the first of them."""

from typing import Annotated

from gangline.api.describe import about
from gangline.api.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta import Object, Wire

ROLES = ("Worker",)
CONTAINER = "jax"


class JAXJobSpec(Wire):
    """What a JAXJob runs."""

    run_policy: Annotated[RunPolicy, about("How it runs and ends.")] = RunPolicy()
    jax_replica_specs: Annotated[
        dict[str, ReplicaSpec], about("Pods by role: Worker is the only one.", required=True)
    ] = {}


class JAXJob(Object):
    """A distributed JAX training job."""

    spec: Annotated[JAXJobSpec, about("What it runs.", required=True)] = JAXJobSpec()
    status: Annotated[JobStatus, about("Where it is in its life; written by the operator.")] = (
        JobStatus()
    )
