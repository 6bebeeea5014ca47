"""JAXJob: equal processes that use the first of them as coordinator."""

from typing import Annotated

from gangline.api.jobs.kubeflow import JobStatus, ReplicaSpec, RunPolicy
from gangline.api.meta.field_doc import doc
from gangline.api.meta.objects import Object, Wire

ROLES = ("Worker",)
CONTAINER = "jax"


class JAXJobSpec(Wire):
    """The desired state of a JAXJob."""

    run_policy: Annotated[RunPolicy, doc("Run policy of the job.")] = RunPolicy()
    jax_replica_specs: Annotated[
        dict[str, ReplicaSpec], doc("Pods by role: Worker is the only one.", required=True)
    ] = {}


class JAXJob(Object):
    """A distributed JAX training job."""

    spec: Annotated[JAXJobSpec, doc("Desired state.", required=True)] = JAXJobSpec()
    status: Annotated[JobStatus, doc("Observed state; written by the operator.")] = JobStatus()
