"""JAXJob: equal processes that use the first of them as coordinator."""

from typing import Annotated

from gangline.api.jobs.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta.field_doc import field_doc
from gangline.api.meta.objects import Object, Wire

ROLES = ("Worker",)
CONTAINER = "jax"


class JAXJobSpec(Wire):
    """The desired state of a JAXJob."""

    run_policy: Annotated[RunPolicy, field_doc("Run policy of the job.")] = RunPolicy()
    jax_replica_specs: Annotated[
        dict[str, ReplicaSpec], field_doc("Pods by role: Worker is the only one.", required=True)
    ] = {}


class JAXJob(Object):
    """A distributed JAX training job."""

    spec: Annotated[JAXJobSpec, field_doc("Desired state.", required=True)] = JAXJobSpec()
    status: Annotated[JobStatus, field_doc("Observed state; written by the operator.")] = (
        JobStatus()
    )
